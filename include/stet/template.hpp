#pragma once
#include <memory>
#include <string>
#include "jinja/jinja.hpp"
#include "stet/tokenizer.hpp"
namespace stet {
class ChatTemplate {
 public:
  static std::shared_ptr<const ChatTemplate> of(const Tokenizer& t);
  static std::shared_ptr<const ChatTemplate> parse(const std::string& text, const Tokenizer& t, const std::string& name);
  jinja::Text render(const std::string& messages, bool gen, const std::string& variables, double now) const;
 private:
  ChatTemplate(jinja::Program p, std::string bos, std::string eos) : program_(std::move(p)), bos_(std::move(bos)), eos_(std::move(eos)) {}
  jinja::Program program_;
  std::string bos_, eos_;
};
}
