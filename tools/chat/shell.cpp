// The shell of a chat: applies messages and commands to the current branch.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "stet/base/error.hpp"
#include "tools/chat/chat.hpp"
#include "tools/chat/input.hpp"
#include "tools/chat/line_editor.hpp"
#include "tools/chat/signals.hpp"
#include "tools/chat/terminal.hpp"
#include "tools/command/words.hpp"
#include "tools/prompt/functions.hpp"

namespace stet::tool {
namespace {

// Splits a text into its first word and the rest.
std::pair<std::string, std::string> split_word(const std::string& text) {
  const size_t begin = text.find_first_not_of(' ');
  if (begin == std::string::npos) return {"", ""};
  const size_t end = std::min(text.find_first_of(" \n", begin), text.size());
  const size_t rest = std::min(text.find_first_not_of(" \n", end), text.size());
  std::string tail = text.substr(rest);
  tail.erase(tail.find_last_not_of(' ') + 1);
  return {text.substr(begin, end - begin), tail};
}

std::string need(const std::string& value, const char* command, const char* what) {
  if (value.empty()) throw std::runtime_error(fmt::format("{} needs {}", command, what));
  return value;
}

int64_t number(const std::string& text, const char* command, int64_t min, int64_t max) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < min || value > max) {
    throw Error(ErrorKind::argument, "", command, fmt::format("an integer in {}..{}", min, max),
                text);
  }
  return value;
}

// Returns the files and directories whose paths begin with `word`.
std::vector<std::string> paths_like(const std::string& word) {
  namespace fs = std::filesystem;
  const size_t slash = word.rfind('/') + 1;  // 0 without a slash
  const std::string folder = word.substr(0, slash);
  std::vector<std::string> paths;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder.empty() ? "." : folder, ignored)) {
    const std::string path = folder + entry.path().filename().string();
    if (path.starts_with(word)) paths.push_back(entry.is_directory(ignored) ? path + "/" : path);
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<Message> user_message(const std::string& text) {
  return {{"user", text, "", 0, 0, false}};
}

// Returns the command for a synonym.
std::string command_of(const std::string& word) {
  return word == "/bye" || word == "/exit" ? "/quit" : word == "/?" ? "/help" : word;
}

// Returns true for words that many users type to leave. In a script or a pipe they are messages.
bool is_farewell(const std::string& line) {
  const auto [word, rest] = split_word(line);
  return (word == "exit" || word == "quit") && rest.empty();
}

}  // namespace

struct ChatShell::Command {
  const char* name;
  const char* arguments;
  const char* help;
  void (*run)(ChatShell&, const std::string& rest);
};

const std::vector<ChatShell::Command>& ChatShell::commands() {
  static const std::vector<Command> all = {
      {"/help", "[COMMAND]", "list commands, or explain one",
       [](ChatShell& s, const std::string& r) { s.help(r); }},
      {"/retry", "", "draw the last reply again (with another seed, unless greedy)",
       [](ChatShell& s, const std::string&) {
         s.current().retry();
         SamplingSettings& sampling = s.current().session().generation().sampling;
         if (!sampling.greedy) ++sampling.seed;
         s.converse({}, Then::reply);
       }},
      {"/continue", "", "continue a reply that was stopped",
       [](ChatShell& s, const std::string&) {
         if (!s.current().open())
           throw std::runtime_error("/continue: the last reply has ended; write a message");
         s.converse({}, Then::go_on);
       }},
      {"/rewind", "[TURNS]", "remove the last turn, or several",
       [](ChatShell& s, const std::string& r) { s.rewind(r); }},
      {"/edit", "[N] TEXT", "replace your last message, or your N-th, and draw a new reply",
       [](ChatShell& s, const std::string& r) { s.edit(r); }},
      {"/system", "[TEXT]", "set the system message, or remove it",
       [](ChatShell& s, const std::string& r) { s.system(r); }},
      {"/tool", "RESULT", "send the result of the function that the last reply calls",
       [](ChatShell& s, const std::string& r) {
         s.send_results({{"tool", need(r, "/tool", "the result"), "", 0, 0, false}});
       }},
      {"/fork", "NAME", "make a branch from here and switch to it",
       [](ChatShell& s, const std::string& r) { s.fork(r); }},
      {"/switch", "NAME", "switch to a branch",
       [](ChatShell& s, const std::string& r) { s.switch_to(r); }},
      {"/branches", "", "list branches",
       [](ChatShell& s, const std::string&) { s.list_branches(); }},
      {"/save", "[[--overwrite] FILE]", "save this branch to FILE, or to the file of --save",
       [](ChatShell& s, const std::string& r) { s.save(r); }},
      {"/load", "FILE", "continue from a saved state in this branch",
       [](ChatShell& s, const std::string& r) { s.load(r); }},
      {"/prune", "KEEP [SINKS] [shift]", "keep only the last KEEP positions and the first SINKS",
       [](ChatShell& s, const std::string& r) { s.prune(r); }},
      {"/set", "[NAME VALUE]", "show the settings, or change one",
       [](ChatShell& s, const std::string& r) { s.set(r); }},
      {"/messages", "", "print the conversation",
       [](ChatShell& s, const std::string&) { s.tell(messages_text(s.current().messages())); }},
      {"/state", "", "print tokens, cache and digests",
       [](ChatShell& s, const std::string&) {
         s.tell(state_text(s.current().session(), s.options_.model));
       }},
      {"/verify", "", "compute the state again and compare every byte",
       [](ChatShell& s, const std::string&) { s.verify(); }},
      {"/stats", "on|off", "print tokens and time after each reply",
       [](ChatShell& s, const std::string& r) {
         s.set("stats " + (r.empty() ? s.options_.stats ? "off" : "on" : r));
       }},
      {"/quit", "", "leave (so do /bye, exit and Ctrl-D)", nullptr}};
  return all;
}

ChatShell::ChatShell(Branch first, ChatOptions& options, SaveTargets targets)
    : options_(options), targets_(std::move(targets)) {
  branches_.emplace(name_, std::move(first));
  if (!options.resume.empty()) saved_.add(options.resume, current());
  colour_ = colours_on(STDOUT_FILENO);
}

bool ChatShell::interactive() { return isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0; }

bool ChatShell::input(const std::string& line) {
  if (line.starts_with("//"))
    converse(user_message(line.substr(1)), Then::reply);
  else if (line.starts_with("/"))
    return command(line);
  else if (line.find_first_not_of(" \t\n") != std::string::npos)
    converse(user_message(line), Then::reply);
  return true;
}

const ChatShell::Command& ChatShell::find_command(const std::string& word) {
  std::vector<std::string> names;
  for (const Command& c : commands()) {
    if (command_of(word) == c.name) return c;
    names.push_back(c.name);
  }
  throw std::runtime_error(fmt::format("unknown command {}{} (/help lists them)",
                                       printable(word, 40), did_you_mean(word, names)));
}

bool ChatShell::command(const std::string& line) {
  const auto [word, rest] = split_word(line);
  const Command& found = find_command(word);
  if (*found.arguments == '\0' && !rest.empty())
    throw std::runtime_error(
        fmt::format("{} takes no argument, found {}", found.name, printable(rest, 40)));
  if (found.run == nullptr) return false;
  found.run(*this, rest);
  return true;
}

// Prints the answer of a command. With --json, standard output is for objects alone.
void ChatShell::tell(const std::string& text) {
  if (options_.json)
    say("{}", text);
  else
    out(text);
}

std::vector<std::string> ChatShell::complete(const std::string& line) const {
  std::vector<std::string> candidates;
  const auto offer = [&](const std::string& word, const std::string& name) {
    if (name.starts_with(word)) candidates.push_back(name);
  };
  const size_t space = line.find_last_of(' ');
  const std::string word = line.substr(space + 1), first = split_word(line).first;
  if (!line.starts_with("/")) return candidates;
  if (space == std::string::npos || first == "/help") {
    for (const Command& c : commands()) offer(word, c.name);
  } else if (first == "/switch") {
    for (const auto& [name, unused] : branches_) offer(word, name);
  } else if (first == "/set") {
    for (const std::string& name : setting_names()) offer(word, name);
  } else if (first == "/load" || first == "/save") {
    for (const std::string& path : paths_like(word)) candidates.push_back(path);
  }
  return candidates;
}

std::string ChatShell::prompt_text() const {
  const std::string name = name_ == "main" ? "you" : "you (" + printable(name_) + ")";
  return colour_ ? "\1\033[1m\1" + name + ">\1\033[0m\1 " : name + "> ";
}

std::string ChatShell::greeting() const {
  const Session& session = branches_.at(name_).conversation.session();
  const ModelConfig& config = session.model().config();
  const size_t messages = session.chat().messages.size();
  const std::string functions =
      options_.tools
          ? fmt::format("The model may call {}; /tool RESULT sends what a call returned\n",
                        printable(function_names(*options_.tools), 400))
          : "";
  return fmt::format(
      "{}: {}, {} layers, {} tokens of context{}\n{}"
      "/help lists commands; \\ at the end of a line goes on in the next, \"\"\" begins several "
      "lines\n",
      printable(checkpoint_name(session.model().directory())), config.architecture, config.layers,
      session.capacity(),
      messages == 0 ? "" : fmt::format("; {} messages so far, /messages shows them", messages),
      functions);
}

bool ChatShell::run() {
  const char* home = std::getenv("HOME");
  const char* given = std::getenv("STET_HISTORY");
  const std::string history = given != nullptr  ? given
                              : home != nullptr ? std::string(home) + "/.stet_history"
                                                : "";
  LineEditor editor([this](const std::string& line) { return complete(line); }, history,
                    ChatSignals::wake_fd());
  if (interactive()) out(greeting());
  InputLines lines;
  std::string line;
  for (bool more = true; more && ChatSignals::ending() == 0 && out("");) {
    flush_output();
    ChatSignals::clear_interrupt();
    const LineEditor::Got got = editor.read(lines.open()    ? "... "
                                            : interactive() ? prompt_text()
                                                            : "",
                                            &line);
    if (interactive() && got == LineEditor::Got::end) out("\n");
    if (ChatSignals::ending() != 0) break;
    if (got == LineEditor::Got::line) {
      const std::optional<std::string> text =
          interactive() && !lines.open() && is_farewell(line) ? "/quit" : lines.add(line);
      more = !text || try_input(*text);
    } else if (lines.open()) {
      if (got == LineEditor::Got::end)
        complain(
            fmt::format("the message was not sent: the input ended before {}", lines.expected()));
      lines.drop();
      more = interactive();
      failed_ = !more;
    } else {
      more = got == LineEditor::Got::given_up || (interactive() && !try_leave());
    }
  }
  return !failed_;
}

// Returns false if the chat is to end.
bool ChatShell::try_input(const std::string& text) {
  try {
    if (!input(text)) return interactive() && !try_leave();
  } catch (const std::exception& e) {  // includes a lack of memory, which may pass
    complain(printable(e.what(), 3000));
    failed_ = failed_ || !interactive();  // a user at a terminal sees the error and can retry
  }
  leaving_ = false;
  return true;
}

bool ChatShell::try_leave() {
  const bool again = leaving_;
  try {
    return leave(true);
  } catch (const std::exception& e) {
    complain(printable(e.what(), 3000));
    if (!again) note("(/save FILE saves it elsewhere; /quit or Ctrl-D again leaves without it)");
    failed_ = left_ = again;
    return again;
  }
}

// ---------------------------------------------------------------- conversation

void ChatShell::send_results(const std::vector<Message>& results) {
  const std::vector<Message>& all = current().messages();
  if (all.empty() || all.back().role != "assistant")
    throw std::runtime_error("/tool: there is no reply that calls a function");
  converse(results, Then::reply);
}

bool ChatShell::converse(const std::vector<Message>& said, Then then) {
  int64_t to_process = 0;
  if (!said.empty() && interactive() && animations_on()) {
    std::vector<Message> all = current().messages();
    all.insert(all.end(), said.begin(), said.end());
    const PromptReport planned = current().plan(all);
    to_process = planned.recomputed + planned.added;
  }
  std::optional<ProgressLine> reading;
  if (to_process > 0) reading.emplace("reading", to_process);
  bool at_start = true;
  const auto show = [&](std::string_view text) {
    if (quiet || text.empty()) return;
    reading.reset();
    if (std::exchange(at_start, false) && colour_) out_style("\033[36m");
    out_text(text);
    flush_output();
  };
  try {
    last_ = take_turn(current(), said, then, options_.generate, show, [&](int64_t done) {
      if (reading) reading->progress(done);
    });
  } catch (const Interrupted&) {
    reading.reset();
    note("(stopped before the reply: nothing has changed)");
    return false;
  }
  reading.reset();
  if (!quiet) out_style(colour_ && !at_start ? "\033[0m\n" : "\n");
  report_healed(current().session());
  report_end();
  return true;
}

// Prints the remarks on the turn just taken, and saves for --autosave.
void ChatShell::report_end() {
  if (!quiet && options_.stats) note(fmt::format("({})", last_->text()));
  if (!quiet && last_->reply.stop == StopReason::interrupted && ChatSignals::ending() == 0)
    note("(stopped; /continue resumes the reply)");
  if (!quiet && last_->reply.stop == StopReason::length) {
    const Session& session = current().session();
    note(session.size() == session.capacity()
             ? fmt::format("(the context of {} tokens is full; /prune or /rewind makes room)",
                           session.capacity())
             : fmt::format("(the limit of {} tokens is reached; /continue resumes the reply)",
                           options_.generate.max_tokens));
  }
  if (options_.autosave) save_to(options_.save);
}

void ChatShell::edit(const std::string& rest) {
  const auto [first, tail] = split_word(rest);
  std::vector<size_t> users;
  for (size_t i = 0; i < current().messages().size(); ++i) {
    if (current().messages()[i].role == "user") users.push_back(i);
  }
  if (users.empty()) throw std::runtime_error("/edit: there is no message of yours yet");
  const bool numbered = !tail.empty() && first.find_first_not_of("0123456789") == std::string::npos;
  const int64_t n = numbered ? number(first, "/edit", 1, static_cast<int64_t>(users.size()))
                             : static_cast<int64_t>(users.size());
  const std::string text = need(numbered ? tail : rest, "/edit", "the new text");
  const size_t at = users[static_cast<size_t>(n - 1)];
  // Only the messages are cut, not the session: the tokens to keep are known once the new text is
  // compared.
  std::vector<Message> messages(current().messages().begin(),
                                current().messages().begin() + static_cast<std::ptrdiff_t>(at));
  Conversation before = current().fork();
  current().session().chat().messages = std::move(messages);
  try {
    if (!converse(user_message(text), Then::reply)) current() = std::move(before);
  } catch (...) {
    current() = std::move(before);
    throw;
  }
}

void ChatShell::rewind(const std::string& turns) {
  const int64_t before = current().session().size();
  current().rewind(turns.empty() ? 1 : number(turns, "/rewind", 1, INT32_MAX));
  note(fmt::format("({} tokens removed, {} left)", before - current().session().size(),
                   current().session().size()));
}

void ChatShell::system(const std::string& text) {
  current().set_system(text);
  int64_t again = 0;
  if (current().session().size() > 0) {
    std::vector<Message> next = current().messages();
    next.push_back(user_message("?").front());  // whatever the next message is
    again = current().plan(next).recomputed;
  }
  note(fmt::format("(used from the next message on{})",
                   again == 0 ? "" : fmt::format(": {} tokens will be processed again", again)));
}

// ---------------------------------------------------------------- branches

void ChatShell::fork(const std::string& rest) {
  const std::string name = need(rest, "/fork", "a name");
  if (branches_.contains(name))
    throw std::runtime_error(
        fmt::format("there is a branch {0} already; /switch {0} goes there", printable(name, 40)));
  branches_.emplace(name, branch().fork());
  name_ = name;
}

void ChatShell::switch_to(const std::string& name) {
  need(name, "/switch", "the name of a branch");
  if (!branches_.contains(name)) {
    std::vector<std::string> names;
    for (const auto& [known, unused] : branches_) names.push_back(known);
    throw std::runtime_error(fmt::format("there is no branch {}{} (/branches lists them)",
                                         printable(name, 40), did_you_mean(name, names)));
  }
  name_ = name;
}

void ChatShell::list_branches() {
  for (const auto& [name, branch] : branches_) {
    tell(fmt::format("{} {:<16} {:>6} messages {:>8} tokens\n", name == name_ ? '*' : ' ', name,
                     branch.conversation.messages().size(), branch.conversation.session().size()));
  }
}

void ChatShell::prune(const std::string& rest) {
  const auto [keep, more] = split_word(rest);
  const auto [sinks, how] = split_word(more == "shift" ? "0 shift" : more);
  if (!how.empty() && how != "shift")
    throw std::runtime_error("/prune takes KEEP [SINKS] [shift], as in /prune 256 4");
  PruneOptions p;
  p.keep_last =
      number(need(keep, "/prune", "the number of positions to keep"), "/prune", 0, INT32_MAX);
  p.sinks = sinks.empty() ? 0 : number(sinks, "/prune", 0, INT32_MAX);
  p.shift = how == "shift";
  const int64_t pruned = current().session().prune(p);
  note(fmt::format("({} positions pruned)", pruned));
}

// ---------------------------------------------------------------- settings and proof

void ChatShell::set(const std::string& rest) {
  const auto [name, value] = split_word(rest);
  Session& session = current().session();
  if (name.empty()) {
    tell(settings_text(session.generation(), options_));
    return;
  }
  const std::string said = change_setting(session.generation(), options_,
                                          session.model().config().vocab_size, name, value);
  if (!said.empty()) note("(" + said + ")");
}

void ChatShell::verify() {
  Session& session = current().session();
  std::optional<ProgressLine> line;
  if (interactive()) line.emplace("computing", session.size());
  try {
    const std::string result = verify_live_state(session, [&](int64_t done) {
      if (ChatSignals::stopping()) throw Interrupted();
      if (line) line->progress(done);
    });
    line.reset();
    tell(result);
  } catch (const Interrupted&) {
    line.reset();
    note("(stopped: nothing has changed, nothing is proved)");
  }
}

void ChatShell::help(const std::string& about) {
  const std::string wanted = command_of(about.empty() || about[0] == '/' ? about : "/" + about);
  if (!wanted.empty()) find_command(wanted);  // throws for an unknown one
  for (const Command& c : commands()) {
    if (!wanted.empty() && wanted != c.name) continue;
    tell(fmt::format("  {:<32} {}\n", fmt::format("{} {}", c.name, c.arguments), c.help));
  }
  if (!wanted.empty()) return;
  tell(
      "Ctrl-C stops a reply, and /continue resumes it.\n"
      "A line that ends in \\ continues in the next. \"\"\" begins and ends a message of several "
      "lines.\n"
      "A pasted block is one message. // begins a message that starts with a slash.\n");
}

}  // namespace stet::tool
