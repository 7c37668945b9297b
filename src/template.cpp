#include "stet/template.hpp"
namespace stet {
std::shared_ptr<const ChatTemplate> ChatTemplate::of(const Tokenizer& t) { return parse(std::string(t.chat_template()), t, "chat template"); }
std::shared_ptr<const ChatTemplate> ChatTemplate::parse(const std::string& text, const Tokenizer& t, const std::string& name) {
  return std::shared_ptr<const ChatTemplate>(new ChatTemplate(jinja::Program::parse(text, name), t.bos() ? t.piece(*t.bos()) : "", t.eos() ? t.piece(*t.eos()) : ""));
}
jinja::Text ChatTemplate::render(const std::string& messages, bool gen, const std::string& variables, double now) const {
  jinja::Variables v{{"messages", jinja::Value::from_json_array(messages, "messages", 0)}, {"add_generation_prompt", jinja::Value::boolean(gen)},
    {"bos_token", jinja::Value::string(bos_)}, {"eos_token", jinja::Value::string(eos_)}};
  (void)variables;
  return program_.render(v, {{}, now});
}
}
