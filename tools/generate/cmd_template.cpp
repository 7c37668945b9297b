// stet template: renders chat messages to the text of a prompt.
#include <fmt/format.h>

#include <chrono>

#include "stet/base/error.hpp"
#include "stet/chat/template.hpp"
#include "tools/command/command.hpp"
#include "tools/prompt/functions.hpp"

namespace stet::tool {
namespace {

using jinja::Value;

struct TemplateCommand {
  CheckpointOption checkpoint;
  std::string messages, messages_file, prompt, system, tools, chat_template;
  std::vector<std::string> variables;
  bool add_generation_prompt = false, json = false, show_ids = false, jsonl = false,
       plain_special = false;
  SourceOptions sources;
};

double epoch_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Value message(const std::string& role, const std::string& content) {
  return Value::dict({{"role", Value::string(role)}, {"content", Value::string(content)}});
}

Value messages_of(const TemplateCommand& o) {
  if (!o.messages.empty()) return Value::from_json(o.messages, "--messages");
  if (!o.messages_file.empty())
    return Value::from_json(read_prompt(o.messages_file), o.messages_file);
  std::vector<Value> all;
  if (!o.system.empty()) all.push_back(message("system", o.system));
  all.push_back(message("user", o.prompt));
  return Value::list(std::move(all));
}

Value variables_of(const TemplateCommand& o) {
  std::vector<std::pair<std::string, Value>> all;
  if (!o.tools.empty())
    all.emplace_back("tools", Value::from_json(dump(read_functions(o.tools)), o.tools));
  for (const std::string& text : o.variables) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0)
      usage_error("--var", "name=JSON", printable(text, 60));
    const std::string name = text.substr(0, equals);
    try {
      all.emplace_back(name, Value::from_json(std::string_view(text).substr(equals + 1), ""));
    } catch (const Error& e) {
      usage_error("--var " + printable(name, 60), e.expected, printable(e.found, 60));
    }
  }
  return Value::dict(std::move(all));
}

class Renderer {
 public:
  explicit Renderer(const TemplateCommand& o)
      : tokenizer_(require_tokenizer(o.checkpoint)),
        template_(o.chat_template.empty()
                      ? ChatTemplate(*tokenizer_)
                      : ChatTemplate(read_prompt(o.chat_template), o.chat_template, *tokenizer_)),
        plain_special_(o.plain_special) {}

  jinja::Text render(const Value& messages, bool add_generation_prompt,
                     const Value& variables) const {
    return template_.render(messages, add_generation_prompt, variables, epoch_seconds());
  }
  // Adds no bos: the template writes all special tokens itself.
  std::vector<int32_t> ids(const jinja::Text& text) const {
    return tokenizer_->encode(text.bytes, Tokenizer::Bos::off,
                              plain_special_ ? plain_ranges(text) : std::vector<TextRange>());
  }
  Json answer(const jinja::Text& text) const { return {{"text", text.bytes}, {"ids", ids(text)}}; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  ChatTemplate template_;
  bool plain_special_;
};

// Answers one line: {"messages": […], "add_generation_prompt": …, further variables}.
Json answer_line(const Renderer& renderer, const std::string& line, const std::string& where) {
  try {
    const Value request = Value::from_json(line, where);
    if (!request.is(Value::Kind::dict))
      throw Error(ErrorKind::format, where, "", "a JSON object", printable(line, 60));
    Value messages;
    bool add_generation_prompt = false;
    std::vector<std::pair<std::string, Value>> variables;
    for (const auto& [name, value] : request.members()) {
      if (name == "messages") {
        messages = value;
      } else if (name == "add_generation_prompt") {
        if (!value.is(Value::Kind::boolean))
          throw Error(ErrorKind::format, where, name, "true or false", "another value");
        add_generation_prompt = value.as_boolean();
      } else {
        variables.emplace_back(name, value);
      }
    }
    return renderer.answer(
        renderer.render(messages, add_generation_prompt, Value::dict(std::move(variables))));
  } catch (const jinja::Refused& refusal) {
    return {{"error", refusal.found}};
  } catch (const Error& error) {
    return {{"error", error.what()}};
  }
}

void run(const TemplateCommand& o) {
  const Renderer renderer(o);
  if (o.jsonl) {
    return each_line([&](const std::string& line, const std::string& where) {
      return dump(answer_line(renderer, line, where));
    });
  }
  const jinja::Text text =
      renderer.render(messages_of(o), o.add_generation_prompt, variables_of(o));
  if (o.json) {
    out(dump(renderer.answer(text)) + "\n");
  } else if (o.show_ids) {
    for (const int32_t id : renderer.ids(text))
      out(fmt::format("{:>8}  {}\n", id, printable(renderer.tokenizer().piece(id))));
  } else {
    out_text(text.bytes);
  }
}

}  // namespace

void add_template(Command& app) {
  const auto o = std::make_shared<TemplateCommand>();
  Command* sub =
      app.add_subcommand("template", "Render chat messages with the checkpoint's chat template.");
  o->sources.add(
      sub->add_option("--messages", o->messages, "a JSON array of {\"role\": …, \"content\": …}")
          ->type_name("JSON"));
  o->sources.add(sub->add_option("--messages-file", o->messages_file,
                                 "the same, from a file (- for standard input)")
                     ->type_name("FILE"));
  Option* prompt = o->sources.add(
      sub->add_option("-p,--prompt", o->prompt, "one user message")->type_name("TEXT"));
  Option* lines = o->sources.add(sub->add_flag(
      "--jsonl", o->jsonl,
      "per line of standard input {\"messages\": […], \"add_generation_prompt\": …, further "
      "variables}, per line out {\"text\": …, \"ids\": […]} or {\"error\": …}"));
  sub->add_option("--system", o->system, "a system message before --prompt")
      ->type_name("TEXT")
      ->needs(prompt);
  sub->add_flag("--add-generation-prompt", o->add_generation_prompt,
                "end where the model's reply begins")
      ->excludes(lines);
  sub->add_option("--tools", o->tools, "a JSON array of functions that the model may call")
      ->type_name("FILE")
      ->excludes(lines);
  sub->add_texts("--var", o->variables, "a variable of the template: name=JSON (repeat for more)")
      ->excludes(lines);
  sub->add_option("--chat-template", o->chat_template, "another template than the checkpoint's")
      ->type_name("FILE");
  Option* json = sub->add_flag("--json", o->json, "{\"text\": …, \"ids\": […]}")->excludes(lines);
  add_raw_output(*sub);
  sub->add_flag("--show-ids", o->show_ids, "print the tokens of the text, one per line")
      ->excludes(lines)
      ->excludes(json);
  sub->add_flag("--plain-special", o->plain_special,
                "treat special tokens in messages as text, as stet chat does");
  o->checkpoint.add_to(*sub);
  sub->callback([o] {
    o->sources.require("--messages, --messages-file, --prompt or --jsonl");
    if (o->plain_special && !o->json && !o->show_ids && !o->jsonl)
      usage_error("--plain-special needs --json, --show-ids or --jsonl");
    run(*o);
  });
}

}  // namespace stet::tool
