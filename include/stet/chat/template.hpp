// Chat messages to the text of a prompt, by the checkpoint's chat template, as transformers'
// apply_chat_template does it (jinja/jinja.hpp says what of Jinja there is).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stet/api.h"
#include "stet/text/jinja.hpp"
#include "stet/text/tokenizer.hpp"

namespace stet {

// The parts of a rendering that came from messages and variables: what must stay ordinary text when
// it is tokenized (see Tokenizer::encode). Of bytes begin .. end-1; counted from `begin`.
STET_API std::vector<TextRange> plain_ranges(const jinja::Text& text, size_t begin = 0,
                                             size_t end = SIZE_MAX);

// Immutable; any number of threads may use one at once.
class STET_API ChatTemplate {
 public:
  // The tokenizer's own template; where tokenizer_config.json lists one named tool_use, that one
  // when there are tools. Throws Error: argument (there is none), format and unsupported (where in
  // "chat_template", and why).
  explicit ChatTemplate(const Tokenizer& tokenizer);
  // Another template for the same special tokens; `name` is the file of its errors.
  ChatTemplate(std::string_view source, const std::string& name, const Tokenizer& tokenizer);

  // The prompt. `messages` is a list of objects; strings in message i have origin i. `variables` is
  // an object of further variables (tools, documents, enable_thinking, …), which go before special
  // tokens of the same name; their strings have as origin the number of messages. What the template
  // writes itself, special tokens among it, is not marked. `now`, in seconds since the epoch, is
  // for strftime_now.
  //
  // Throws jinja::Refused when the template refuses the messages (`found` is its message), and
  // Error: argument (messages or variables are no such values), format, unsupported, capacity
  // (jinja::Limits).
  jinja::Text render(const jinja::Value& messages, bool add_generation_prompt,
                     const jinja::Value& variables, double now) const;

 private:
  jinja::Program standard_, with_tools_;
  jinja::Variables special_tokens_;
};

}  // namespace stet
