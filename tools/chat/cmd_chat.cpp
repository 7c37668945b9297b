// stet chat.
#include <fmt/format.h>

#include "src/base/json_value.hpp"
#include "stet/base/error.hpp"
#include "tools/chat/chat.hpp"
#include "tools/chat/signals.hpp"
#include "tools/chat/terminal.hpp"
#include "tools/prompt/functions.hpp"
#include "tools/store/store.hpp"

namespace stet::tool {
namespace {

// Returns the variables of the template in `before`, a JSON object or "", and those of --var, which
// replace others of their names.
std::string variables_json(const ChatOptions& o, const std::string& before) {
  if (o.variables.empty()) return before;
  Json all = before.empty() ? Json::object() : parse_ordered_json(before, "variables");
  for (const std::string& entry : o.variables) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0)
      usage_error("--var", "NAME=JSON", printable(entry, 60));
    try {
      all[entry.substr(0, equals)] = parse_ordered_json(entry.substr(equals + 1), "");
    } catch (const Error& e) {
      usage_error("--var " + printable(entry.substr(0, equals), 60),
                  e.field.empty() ? e.expected : e.expected + " at " + e.field,
                  printable(e.found, 60));
    }
  }
  if (o.tools && std::ranges::any_of(o.variables, [](auto& v) { return v.starts_with("tools="); }))
    usage_error("--tools excludes --var tools=…");
  return dump(all);
}

// Applies the options for the template and its variables.
void apply(const ChatOptions& o, const Tokenizer& tokenizer, ChatState& chat) {
  if (!o.template_file.empty()) chat.chat_template = read_prompt(o.template_file);
  chat.variables = variables_json(o, chat.variables);
  if (o.tools) set_tools(*o.tools, tokenizer, chat);
  if (o.special_in_user_text) chat.special_in_text = true;
}

// Runs the conversation. Saves to --save however it ends. Returns false if a command failed.
bool converse(ChatShell& shell, const ChatOptions& o) {
  bool good = true;
  try {
    good = o.script.empty() ? shell.run() : run_chat_script(shell, o);
  } catch (const std::exception& e) {
    complain(fmt::format("stet: {}", printable(e.what(), 3000)));
    good = false;
  }
  shell.leave(false);
  return good;
}

void run_chat(ChatOptions& o) {
  o.sampling.validate();
  o.restore.take(o.model);
  o.model.of_snapshot = !o.resume.empty();
  SaveTargets targets;
  if (!o.resume.empty()) targets.know(o.resume);
  if (o.overwrite && !o.save.empty()) targets.know(o.save);
  if (!o.save.empty()) {
    targets.check(
        o.save, "--save",
        fmt::format("--resume {0} continues it, --overwrite replaces it", printable(o.save)));
    check_writable(o.save);
  }
  std::string greeting;
  Branch branch = o.resume.empty() ? open_chat(o) : resume_chat(o, o.resume, nullptr, &greeting);
  Conversation& first = branch.conversation;
  if (!greeting.empty() && !o.json) note(greeting);
  o.save_as.check(o.save, first.session(), first.tokenizer().get());
  if (o.system) first.set_system(*o.system);
  o.sampling.report_idle(first.session().generation());
  o.sampling.report_seed(first.session().generation());
  o.speculate.apply(first.session(), o.model, first.tokenizer().get(), o.generate);
  ChatShell shell(std::move(branch), o, std::move(targets));
  bool good = true;
  {
    const bool typed = o.script.empty() && ChatShell::interactive();
    const ChatSignals noted(typed ? ChatSignals::Interrupt::stops : ChatSignals::Interrupt::ends);
    good = converse(shell, o);
  }
  flush_output();
  if (ChatSignals::ending() != 0)
    std::raise(ChatSignals::ending());  // ends the process as if there were no handler
  finish_output();
  if (!good) throw ExitStatus{1};
}

// Throws an argument Error for a state with tokens but no messages: the first turn would discard
// the tokens.
void require_conversation(const Snapshot& snapshot) {
  const size_t tokens = snapshot.tokens().size();
  if (tokens == 0 || !snapshot.meta().chat.messages.empty()) return;
  throw Error(
      ErrorKind::argument, snapshot.path(), "messages",
      "a conversation (stet resume " + printable(snapshot.path()) + " -p TEXT continues raw text)",
      fmt::format("{} tokens of raw text, and no messages", tokens));
}

}  // namespace

Branch open_chat(ChatOptions& o) {
  const auto tokenizer = require_tokenizer(o.model.checkpoint);
  ChatState chat;
  apply(o, *tokenizer, chat);
  const auto model = o.model.load_model();
  Session session(model, o.model.session_options());
  session.generation() = default_generation(*model);
  o.sampling.apply(session.generation(), model->config().vocab_size);
  check_generation(session.generation(), model->config().vocab_size, 0, "");
  session.chat() = std::move(chat);
  return {Conversation(std::move(session), tokenizer)};
}

Branch resume_chat(ChatOptions& o, const std::string& path,
                   const std::shared_ptr<const Model>& loaded, std::string* greeting) {
  Snapshot snapshot = open_state(path);
  require_conversation(snapshot);
  if (loaded == nullptr) require_delta(snapshot, o.restore.parent);
  // --parent is that of --resume, not of a file that is loaded later.
  snapshot.find_parents(loaded == nullptr ? o.restore.parent : std::nullopt);
  if (!o.save.empty()) snapshot.check_keeps_parents(o.save);
  ModelOptions model = o.model;
  follow(model, snapshot, o.restore.how.replay);
  auto tokenizer = tokenizer_of(snapshot, model);
  if (tokenizer == nullptr) no_tokenizer(model.source()->path());
  const auto weights = loaded != nullptr ? loaded : model.load_model();
  const double start = seconds();
  RestoreReport report;
  Session session =
      restore_session(snapshot, weights, model, o.restore.how, tokenizer.get(), &report);
  *greeting = restored_text(snapshot, session, o.restore.how.replay, report, seconds() - start);
  o.sampling.apply(session.generation(), weights->config().vocab_size);
  check_generation(session.generation(), weights->config().vocab_size, session.size(), "");
  apply(o, *tokenizer, session.chat());
  if (loaded == nullptr) o.model = model;
  return {Conversation(std::move(session), tokenizer), std::move(snapshot)};
}

void add_chat(Command& app) {
  const auto o = std::make_shared<ChatOptions>();
  Command* sub = app.add_subcommand("chat", "Chat with a model, or run a scripted conversation.");
  sub->add_option_function(
         "--system", [o](const std::string& text) { o->system = text; },
         "the system message (\"\": none)")
      ->type_name("TEXT")
      ->group("Conversation");
  sub->add_option("--script", o->script,
                  "one message per line, or JSON with expected replies (- for standard input)")
      ->type_name("FILE")
      ->group("Conversation");
  sub->add_option("--resume", o->resume,
                  "continue from a snapshot, which is only read (--save writes)")
      ->type_name("FILE")
      ->group("Conversation");
  Option* save =
      sub->add_option("--save", o->save,
                      "write the state to this file at the end; it must be new, or that of "
                      "--resume")
          ->type_name("FILE")
          ->group("Conversation");
  sub->add_flag("--overwrite", o->overwrite, "with --save: replace an existing file")
      ->group("Conversation");
  Option* output = sub->add_option("-o,--output", o->save, "the same as --save FILE --overwrite")
                       ->type_name("FILE")
                       ->group("Conversation");
  output->excludes(save);
  sub->add_flag("--autosave", o->autosave, "with --save: also save after every reply")
      ->group("Conversation");
  sub->add_option("--chat-template", o->template_file,
                  "a Jinja chat template to use instead of the checkpoint's")
      ->type_name("FILE")
      ->group("Conversation");
  sub->add_texts("--var", o->variables,
                 "a variable of the chat template: NAME=JSON (repeat for more)")
      ->group("Conversation");
  sub->add_option("--tools", o->tools_file,
                  "functions that the model may call: a JSON array, as in OpenAI's API")
      ->type_name("FILE")
      ->group("Conversation");
  sub->add_flag("--special-in-user-text", o->special_in_user_text,
                "treat special tokens in messages as special tokens, not as text")
      ->group("Conversation");
  add_raw_output(*sub);
  sub->add_flag("--stats", o->stats, "print tokens and time after each reply")->group("Output");
  sub->add_flag("--json", o->json, "with --script: one JSON object per turn")->group("Output");
  sub->add_option("-n,--max-tokens", o->generate.max_tokens,
                  "maximum tokens of a reply (default: 512)")
      ->type_name("N")
      ->check(integer(1, INT64_MAX))
      ->group("Stopping");
  o->sampling.add_to(*sub);
  o->speculate.add_to(*sub);
  o->save_as.add_to(*sub);
  o->restore.add_to(*sub);
  o->model.add_to(*sub);
  sub->callback([o, output] {
    if (o->json && o->script.empty()) usage_error("--json needs --script FILE");
    for (const auto& [name, given] :
         {std::pair{"--autosave", o->autosave}, {"--overwrite", o->overwrite}}) {
      if (given && o->save.empty()) usage_error(fmt::format("{} needs --save FILE", name));
    }
    o->overwrite = o->overwrite || output->count() > 0;
    if (!o->tools_file.empty()) o->tools = read_functions(o->tools_file);
    variables_json(*o, "");  // throws before anything is loaded
    run_chat(*o);
  });
}

}  // namespace stet::tool
