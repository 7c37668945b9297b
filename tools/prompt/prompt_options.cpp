// The options for prompts: raw text, token ids, or messages of a conversation.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/base/json_value.hpp"
#include "stet/base/error.hpp"
#include "stet/chat/conversation.hpp"
#include "stet/files/file.hpp"
#include "tools/command/command.hpp"
#include "tools/prompt/functions.hpp"
#include "tools/prompt/text_input.hpp"

namespace stet::tool {
namespace {

constexpr size_t kPromptLimit = size_t{1} << 30;

// Throws a UsageError if `where` is an option, and a format Error if it is a file or a line of
// input.
[[noreturn]] void refuse_ids(const std::string& where, const std::string& field,
                             const std::string& expected, const std::string& found) {
  if (where.starts_with("--"))
    usage_error(where + (field.empty() ? "" : ": ") + field, expected, found);
  throw Error(ErrorKind::argument, where, field, expected, found);
}

}  // namespace

Tokenizer::Bos bos_of(const std::string& name) {
  return name == "on"    ? Tokenizer::Bos::on
         : name == "off" ? Tokenizer::Bos::off
                         : Tokenizer::Bos::automatic;
}

Option* add_bos_to(Command& app, std::string& bos, const std::string& automatic,
                   const std::string& group) {
  return app
      .add_option("--bos", bos,
                  "tokens around the text: auto (" + automatic + "; default), on or off")
      ->type_name("WHEN")
      ->check(one_of({"auto", "on", "off"}))
      ->group(group);
}

std::string read_prompt(const std::string& path) {
  return as_text(read_text_input(path == "-" ? "/dev/stdin" : path, kPromptLimit), path);
}

std::vector<int32_t> parse_ids(const std::string& text, const std::string& where,
                               const std::string& what) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool array = first != std::string::npos && text[first] == '[';
  const std::string expected = what + "s: 1,2,3 or [1,2,3]";
  nlohmann::json parsed;
  try {
    parsed = parse_json_value(array ? text : "[" + text + "]", where);
  } catch (const Error& e) {
    if (!array || e.field.empty()) refuse_ids(where, "", expected, printable(text, 60));
    refuse_ids(where, e.field, expected, e.found);
  }
  std::vector<int32_t> ids;
  for (const nlohmann::json& value : parsed) {
    const bool fits = value.is_number_integer() &&
                      (value.is_number_unsigned() ? value.get<uint64_t>() <= INT32_MAX
                                                  : value.get<int64_t>() >= 0);
    if (!fits) {
      // Such a value may nest too deeply to be printed.
      refuse_ids(
          where, "[" + std::to_string(ids.size()) + "]", "a " + what,
          value.is_structured()
              ? std::string(value.type_name())
              : printable(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
                          60));
    }
    ids.push_back(static_cast<int32_t>(value.get<int64_t>()));
  }
  return ids;
}

void PromptOptions::add_to(Command& app) {
  for (Option* option :
       {app.add_texts("-p,--prompt", prompts,
                      "raw text; each further one follows the reply to the one before"),
        app.add_option("--prompt-file", prompt_file, "raw text from a file (- for standard input)")
            ->type_name("FILE"),
        app.add_option("--ids", ids, "token ids: 1,2,3")->type_name("IDS"),
        app.add_option("--ids-file", ids_file,
                       "token ids: a JSON array in a file (- for standard input)")
            ->type_name("FILE")}) {
    sources_.add(option)->group("Prompt");
  }
  bos_ = add_bos_to(app, bos, "as the checkpoint says, but no second bos", "Prompt");
}

void PromptOptions::add_messages_to(Command& app) {
  Option* say = app.add_texts("--say", messages,
                              "a user message, through the chat template (repeat for more turns)");
  sources_.add(say)->group("Prompt")->check({[](const std::string& text) {
                                               return text.empty()
                                                          ? "expected a message, found nothing"
                                                          : "";
                                             },
                                             ""});
  app.add_option_function(
         "--system", [this](const std::string& text) { system = text; },
         "with --say: the system message (\"\": none)")
      ->type_name("TEXT")
      ->needs(say)
      ->group("Prompt");
  app.add_option("--tools", tools_file,
                 "with --say: functions that the model may call, a JSON array as in OpenAI's API")
      ->type_name("FILE")
      ->needs(say)
      ->group("Prompt");
}

void PromptOptions::require() const {
  std::string names;
  for (const Option* option : sources_.options())
    names += (names.empty() ? "" : ", ") + option->get_name();
  sources_.require(names.replace(names.rfind(", "), 2, " or "));
}

Prompts PromptOptions::read(const std::string& from,
                            const std::shared_ptr<const Tokenizer>& tokenizer, bool fresh) {
  Prompts all;
  if (!tools_file.empty()) tools = read_functions(tools_file);
  const auto take = [&](std::vector<int32_t> turn, const std::string& where) {
    if (turn.empty()) refuse_ids(where, "", "at least one token", "none");
    all.push_back({std::move(turn), ""});
  };
  const auto encode = [&](const std::string& text, const std::string& where) {
    if (tokenizer == nullptr) no_tokenizer(from, " (or use --ids)");
    const bool first = all.empty() && (fresh || bos == "on");
    take(tokenizer->encode(text, first ? bos_of(bos) : Tokenizer::Bos::off), where);
  };
  const Option* source = sources_.chosen();
  const std::string name = source == nullptr ? "" : source->get_name();
  if (bos_->count() > 0 && !name.starts_with("--prompt"))
    usage_error("--bos", "--prompt or --prompt-file", name.empty() ? "neither" : name);
  if (name == "--ids") take(parse_ids(ids, name), name);
  if (name == "--ids-file") take(parse_ids(read_prompt(ids_file), ids_file), ids_file);
  if (name == "--prompt-file") prompts = {read_prompt(prompt_file)};
  for (const std::string& text : prompts)
    encode(text, name == "--prompt-file" ? prompt_file : name);
  if (!messages.empty() && tokenizer == nullptr) no_tokenizer(from);
  for (const std::string& message : messages) all.push_back({{}, message});
  return all;
}

void PromptOptions::apply_to(Conversation& conversation, const Tokenizer& tokenizer) const {
  if (tools) set_tools(*tools, tokenizer, conversation.session().chat());
  if (system) conversation.set_system(*system);
}

void PromptOptions::require_open(const Snapshot& snapshot, bool past_end) const {
  const std::vector<Turn>& turns = snapshot.generation().turns;
  const bool ended = !turns.empty() && !turns.back().open,
             messages = !snapshot.meta().chat.messages.empty();
  if (!ended || given() || (past_end && !messages)) return;
  throw Error(ErrorKind::argument, snapshot.path(), "reply",
              messages ? "an unfinished one (--say TEXT adds a message)"
                       : "an unfinished one (--prompt TEXT or --ignore-eos continues)",
              "one that has ended");
}

void PromptOptions::require_fit(const Snapshot& snapshot) const {
  const size_t tokens = snapshot.tokens().size(), said = snapshot.meta().chat.messages.size();
  if (!given() || (said == 0 && (tokens == 0 || !conversation())) || (said > 0 && conversation()))
    return;
  if (conversation()) {
    throw Error(ErrorKind::argument, snapshot.path(), "messages",
                "a conversation for --say (-p TEXT continues raw text)",
                fmt::format("{} tokens of raw text, and no messages", tokens));
  }
  throw Error(ErrorKind::argument, snapshot.path(), "tokens",
              fmt::format("raw text for {} (--say TEXT goes on with a conversation)",
                          sources_.chosen()->get_name()),
              fmt::format("a conversation of {} message{}", said, said == 1 ? "" : "s"));
}

}  // namespace stet::tool
