#include "stet/chat/template.hpp"

#include <algorithm>

#include "stet/base/error.hpp"

namespace stet {
namespace {

using jinja::Program;
using jinja::Value;
using Kind = Value::Kind;

constexpr char kName[] = "chat_template";
constexpr std::string_view kTools = "tool_use";  // name that transformers uses with tools

// Parses the template of that name, or else the standard one.
Program parse_own(const Tokenizer& tokenizer, std::string_view name) {
  const std::string_view of = tokenizer.chat_template(name).empty() ? "" : name;
  const std::string_view source = tokenizer.chat_template(of);
  if (source.empty())
    throw Error(ErrorKind::argument, "", kName, "",
                "the tokenizer has no chat template; give one (--chat-template FILE), or raw text");
  return Program::parse(source, tokenizer.chat_template_place(of));
}

// Returns the tokens by name. A name of several tokens becomes a list.
jinja::Variables special_tokens_of(const Tokenizer& tokenizer) {
  jinja::Variables variables;
  std::vector<Value> additional;
  for (const auto& [name, text] : tokenizer.special_tokens()) {
    if (name == "additional_special_tokens")
      additional.push_back(Value::string(text));
    else
      variables.emplace_back(name, Value::string(text));
  }
  if (!additional.empty())
    variables.emplace_back("additional_special_tokens", Value::list(std::move(additional)));
  return variables;
}

[[noreturn]] void fail(const char* field, const char* expected, const char* found) {
  throw Error(ErrorKind::argument, "", field, expected, found);
}

}  // namespace

std::vector<TextRange> plain_ranges(const jinja::Text& text, size_t begin, size_t end) {
  std::vector<TextRange> ranges;
  for (const jinja::Mark& mark : text.marks) {
    if (mark.end > begin && mark.begin < end)
      ranges.push_back({std::max(mark.begin, begin) - begin, std::min(mark.end, end) - begin});
  }
  return ranges;
}

ChatTemplate::ChatTemplate(const Tokenizer& tokenizer)
    : standard_(parse_own(tokenizer, "")),
      with_tools_(parse_own(tokenizer, kTools)),
      special_tokens_(special_tokens_of(tokenizer)) {}

ChatTemplate::ChatTemplate(std::string_view source, const std::string& name,
                           const Tokenizer& tokenizer)
    : standard_(Program::parse(source, name)),
      with_tools_(standard_),
      special_tokens_(special_tokens_of(tokenizer)) {}

jinja::Text ChatTemplate::render(const Value& messages, bool add_generation_prompt,
                                 const Value& variables, double now) const {
  if (!messages.is(Kind::list)) fail("messages", "a list of objects", "another value");
  if (!variables.is(Kind::dict)) fail("variables", "an object", "another value");
  std::vector<Value> marked;
  for (const Value& message : messages.items()) {
    if (!message.is(Kind::dict)) fail("messages", "a list of objects", "a list of other values");
    marked.push_back(message.marked(static_cast<int>(marked.size())));
  }
  const int further = static_cast<int>(marked.size());
  // The first of equal names counts. transformers always passes tools and documents.
  jinja::Variables all = {{"messages", Value::list(std::move(marked))},
                          {"add_generation_prompt", Value::boolean(add_generation_prompt)}};
  bool tools = false;
  for (const auto& [name, value] : variables.members()) {
    if (name == "messages" || name == "add_generation_prompt")
      fail("variables", "names beside messages and add_generation_prompt", name.c_str());
    tools = tools || (name == "tools" && !value.is(Kind::none));
    all.emplace_back(name, value.marked(further));
  }
  all.emplace_back("tools", Value());
  all.emplace_back("documents", Value());
  all.insert(all.end(), special_tokens_.begin(), special_tokens_.end());
  return (tools ? with_tools_ : standard_).render(all, {.now = now});
}

}  // namespace stet
