#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "stet/error.hpp"
#include "stet/verify.hpp"
#include "tools/chat.hpp"
#include "tools/line_editor.hpp"

namespace stet::tool {
namespace {

// The first word of a text, and what follows it.
std::pair<std::string, std::string> split_word(const std::string& text) {
  const size_t begin = text.find_first_not_of(' ');
  if (begin == std::string::npos) return {"", ""};
  const size_t end = std::min(text.find(' ', begin), text.size());
  const size_t rest = std::min(text.find_first_not_of(' ', end), text.size());
  std::string tail = text.substr(rest);
  tail.erase(tail.find_last_not_of(' ') + 1);
  return {text.substr(begin, end - begin), tail};
}

std::string need(const std::string& value, const char* command, const char* what) {
  if (value.empty()) throw Error(ErrorKind::argument, "", command, what, "nothing");
  return value;
}

int64_t number(const std::string& text, const char* command, int64_t min, int64_t max) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < min || value > max) {
    throw Error(ErrorKind::argument, "", command, fmt::format("an integer in {}..{}", min, max), text);
  }
  return value;
}

double real(const std::string& text, const std::string& name) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0') throw Error(ErrorKind::argument, "", name, "a number", text);
  return value;
}

// Files and directories that a word may become.
std::vector<std::string> paths_like(const std::string& word) {
  namespace fs = std::filesystem;
  const size_t slash = word.rfind('/') + 1;  // 0 where there is none
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

struct Setting {
  const char* name;
  const char* help;
};
constexpr Setting kSettings[] = {
    {"temperature", "0 is greedy"}, {"top-k", "0: all"},         {"top-p", ""},          {"min-p", ""},
    {"typical", ""},                {"repetition-penalty", ""},  {"seed", "0 .. 2^64-1"}, {"greedy", "on or off"},
    {"max-tokens", "of a reply"},   {"stop", "a text, or nothing"}, {"stats", "on or off"}};

bool on_off(const std::string& value, const std::string& name) {
  if (value != "on" && value != "off") throw Error(ErrorKind::argument, "", name, "on or off", value.empty() ? "nothing" : value);
  return value == "on";
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
      {"/help", "[COMMAND]", "what can be typed", [](ChatShell& s, const std::string& r) { s.help(r); }},
      {"/retry", "", "draw the last reply again (with another seed, unless greedy)",
       [](ChatShell& s, const std::string&) {
         s.current().retry();
         ++s.current().session().generation().sampling.seed;
         s.converse(std::nullopt, Then::reply);
       }},
      {"/continue", "", "go on with a reply that was cut",
       [](ChatShell& s, const std::string&) {
         if (!s.current().open()) throw Error(ErrorKind::argument, "", "/continue", "a reply that was cut", "none");
         s.converse(std::nullopt, Then::go_on);
       }},
      {"/rewind", "[TURNS]", "forget the last turn, or several", [](ChatShell& s, const std::string& r) { s.rewind(r); }},
      {"/edit", "[N] TEXT", "say something else in your last message, or in your N-th",
       [](ChatShell& s, const std::string& r) { s.edit(r); }},
      {"/system", "[TEXT]", "set the system message, or remove it", [](ChatShell& s, const std::string& r) { s.system(r); }},
      {"/fork", "NAME", "a branch from here, and go there", [](ChatShell& s, const std::string& r) { s.fork(r); }},
      {"/switch", "NAME", "go to a branch", [](ChatShell& s, const std::string& r) { s.switch_to(r); }},
      {"/branches", "", "list them", [](ChatShell& s, const std::string&) { s.list_branches(); }},
      {"/save", "[FILE]", "keep the state of this branch", [](ChatShell& s, const std::string& r) { s.save(r); }},
      {"/load", "FILE", "go on from a saved state", [](ChatShell& s, const std::string& r) { s.load(r); }},
      {"/prune", "KEEP [SINKS] [shift]", "see only the last KEEP positions and the first SINKS",
       [](ChatShell& s, const std::string& r) { s.prune(r); }},
      {"/set", "[NAME VALUE]", "sampling and limits", [](ChatShell& s, const std::string& r) { s.set(r); }},
      {"/messages", "", "the conversation so far", [](ChatShell& s, const std::string&) { s.show_messages(); }},
      {"/state", "", "tokens, cache, digests", [](ChatShell& s, const std::string&) { s.show_state(); }},
      {"/verify", "", "compute everything again and compare every byte", [](ChatShell& s, const std::string&) { s.verify_state(); }},
      {"/stats", "on|off", "a line after each reply: tokens, time",
       [](ChatShell& s, const std::string& r) { s.options_.stats = r.empty() ? !s.options_.stats : on_off(r, "/stats"); }},
      {"/quit", "", "end (so does Ctrl-D)", nullptr}};
  return all;
}

ChatShell::ChatShell(Conversation first, ChatOptions& options) : options_(options) {
  branches_.emplace(name_, std::move(first));
  colour_ = isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
}

bool ChatShell::input(const std::string& line) {
  if (line.starts_with("//")) converse(line.substr(1), Then::reply);
  else if (line.starts_with("/")) return command(line);
  else if (line.find_first_not_of(" \t\n") != std::string::npos) converse(line, Then::reply);
  return true;
}

bool ChatShell::command(const std::string& line) {
  const auto [word, rest] = split_word(line);
  const Command* found = nullptr;
  for (const Command& c : commands()) {
    if (word == c.name) found = &c;
  }
  if (found == nullptr) throw Error(ErrorKind::argument, "", "command", "one that /help lists", printable(word, 40));
  if (found->run == nullptr) return false;
  found->run(*this, rest);
  return true;
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
    for (const Setting& s : kSettings) offer(word, s.name);
  } else if (first == "/load" || first == "/save") {
    for (const std::string& path : paths_like(word)) candidates.push_back(path);
  }
  return candidates;
}

std::string ChatShell::prompt_text() const {
  const std::string name = name_ == "main" ? "you" : "you (" + name_ + ")";
  return colour_ ? "\1\033[1m\1" + name + ">\1\033[0m\1 " : name + "> ";
}

void ChatShell::run() {
  const char* home = std::getenv("HOME");
  const char* given = std::getenv("STET_HISTORY");
  const std::string history = given != nullptr ? given : home != nullptr ? std::string(home) + "/.stet_history" : "";
  LineEditor editor([this](const std::string& line) { return complete(line); }, history);
  if (editor.interactive()) fmt::print("{}  /help lists commands; a \\ at the end of a line goes on in the next.\n", printable(current().session().model().directory()));
  const Interrupts noted(true);  // Ctrl-C between replies ends nothing
  std::string text;
  bool more = false;
  while (out("") && Interrupts::signal() != SIGTERM) {
    flush_output();
    const std::optional<std::string> line = editor.read(more ? "... " : editor.interactive() ? prompt_text() : "");
    if (!line) break;
    text += *line;
    more = !line->empty() && line->back() == '\\';
    if (more) {
      text.back() = '\n';
      continue;
    }
    try {
      if (!input(std::exchange(text, ""))) return;
    } catch (const Error& e) {
      flush_output();
      fmt::print(stderr, "{}\n", printable(e.what(), 3000));
    }
  }
  if (editor.interactive()) out("\n");
}

// ---------------------------------------------------------------- talking

bool ChatShell::converse(const std::optional<std::string>& user, Then then) {
  bool at_start = true;
  const auto show = [&](std::string_view text) {
    if (quiet || text.empty()) return;
    if (std::exchange(at_start, false) && colour_) out("\033[36m");
    out(text);
    flush_output();
  };
  try {
    last_ = take_turn(current(), user, then, options_.generate, show);
  } catch (const Interrupted&) {
    fmt::print(stderr, "(stopped before the reply: nothing has changed)\n");
    return false;
  }
  if (!quiet) out(colour_ && !at_start ? "\033[0m\n" : "\n");
  if (options_.stats && !quiet) {
    flush_output();
    fmt::print(stderr, "({})\n", last_->text());
  }
  if (!quiet && last_->reply.stop == "interrupt") fmt::print(stderr, "(stopped; /continue goes on)\n");
  if (!quiet && last_->reply.stop == "length") fmt::print(stderr, "(the limit of {} tokens is reached; /continue goes on)\n", options_.generate.max_tokens);
  if (options_.autosave && !options_.save.empty()) save(options_.save);
  return true;
}

void ChatShell::edit(const std::string& rest) {
  const auto [first, tail] = split_word(rest);
  std::vector<size_t> users;
  for (size_t i = 0; i < current().messages().size(); ++i) {
    if (current().messages()[i].role == "user") users.push_back(i);
  }
  if (users.empty()) throw Error(ErrorKind::argument, "", "/edit", "a message of yours", "none");
  const bool numbered = !tail.empty() && first.find_first_not_of("0123456789") == std::string::npos;
  const int64_t n = numbered ? number(first, "/edit", 1, static_cast<int64_t>(users.size())) : static_cast<int64_t>(users.size());
  const std::string text = need(numbered ? tail : rest, "/edit", "the new text");
  const size_t at = users[static_cast<size_t>(n - 1)];
  // What is kept of the tokens shows only when the new text is compared: the conversation is cut there, not the session.
  std::vector<Message> messages(current().messages().begin(), current().messages().begin() + static_cast<std::ptrdiff_t>(at));
  Conversation before = current().fork();
  current().session().dialogue().messages = std::move(messages);
  try {
    if (!converse(text, Then::reply)) current() = std::move(before);
  } catch (...) {
    current() = std::move(before);
    throw;
  }
}

void ChatShell::rewind(const std::string& turns) {
  const int64_t before = current().session().size();
  current().rewind(turns.empty() ? 1 : number(turns, "/rewind", 1, INT32_MAX));
  fmt::print(stderr, "({} tokens forgotten, {} left)\n", before - current().session().size(), current().session().size());
}

void ChatShell::system(const std::string& text) {
  current().set_system(text);
  const PromptReport p = current().messages().empty() || current().session().size() == 0 ? PromptReport() : current().plan(current().messages());
  fmt::print(stderr, "(from the next message on{})\n",
             p.kept + p.recomputed + p.added == 0 ? "" : fmt::format(": {} tokens will be processed again", p.recomputed));
}

// ---------------------------------------------------------------- branches and files

void ChatShell::fork(const std::string& rest) {
  const std::string name = need(rest, "/fork", "a name");
  if (branches_.contains(name)) throw Error(ErrorKind::argument, "", "/fork", "a new name", name);
  branches_.emplace(name, current().fork());
  name_ = name;
}

void ChatShell::switch_to(const std::string& name) {
  if (!branches_.contains(name)) throw Error(ErrorKind::argument, "", "/switch", "a branch that /branches lists", printable(name, 40));
  name_ = name;
}

void ChatShell::list_branches() {
  for (const auto& [name, conversation] : branches_) {
    out(fmt::format("{} {:<16} {:>6} messages {:>8} tokens\n", name == name_ ? '*' : ' ', name, conversation.messages().size(),
                    conversation.session().size()));
  }
}

void ChatShell::save(const std::string& given) {
  const std::string path = need(given.empty() ? options_.save : given, "/save", "a file");
  const double start = seconds();
  const StateDigests d = options_.save_as.save(current().session(), current().tokenizer(), path);
  if (!options_.json) {
    fmt::print(stderr, "saved {} tokens to {} in {:.1f} ms, state {}\n", current().session().size(), printable(path),
               (seconds() - start) * 1e3, digest_text(d.state));
  }
  if (options_.save.empty()) options_.save = path;
}

void ChatShell::load(const std::string& path) {
  std::string greeting;
  Conversation loaded = resume_chat(options_, need(path, "/load", "a file"), current().session().shared_model(), &greeting);
  current() = std::move(loaded);
  fmt::print(stderr, "{}\n", greeting);
}

void ChatShell::prune(const std::string& rest) {
  const auto [keep, more] = split_word(rest);
  const auto [sinks, how] = split_word(more == "shift" ? "0 shift" : more);
  if (!how.empty() && how != "shift") throw Error(ErrorKind::argument, "", "/prune", "KEEP [SINKS] [shift]", rest);
  PruneOptions p;
  p.keep_last = number(need(keep, "/prune", "the number of positions to keep"), "/prune", 0, INT32_MAX);
  p.sinks = sinks.empty() ? 0 : number(sinks, "/prune", 0, INT32_MAX);
  p.shift = how == "shift";
  const int64_t gone = current().session().prune(p);
  fmt::print(stderr, "({} positions are seen no more)\n", gone);
}

// ---------------------------------------------------------------- settings and state

void ChatShell::set(const std::string& rest) {
  const auto [name, value] = split_word(rest);
  GenerationState state = current().session().generation();
  SamplingSettings& s = state.sampling;
  if (name.empty()) {
    out(fmt::format("temperature {}\ntop-k {}\ntop-p {}\nmin-p {}\ntypical {}\nrepetition-penalty {}\nseed {}\ngreedy {}\nmax-tokens {}\n"
                    "stop {}\nstats {}\n",
                    s.temperature, s.top_k, s.top_p, s.min_p, s.typical_p, s.repetition_penalty, s.seed, s.greedy ? "on" : "off",
                    options_.generate.max_tokens, printable(fmt::format("{}", fmt::join(state.stop_strings, " | ")), 200), options_.stats ? "on" : "off"));
    return;
  }
  if (name == "temperature") {
    s.greedy = real(value, name) == 0;
    if (!s.greedy) s.temperature = real(value, name);
  } else if (name == "top-k") s.top_k = static_cast<int>(number(value, "top-k", 0, INT32_MAX));
  else if (name == "top-p") s.top_p = real(value, name);
  else if (name == "min-p") s.min_p = real(value, name);
  else if (name == "typical") s.typical_p = real(value, name);
  else if (name == "repetition-penalty") s.repetition_penalty = real(value, name);
  else if (name == "seed") s.seed = static_cast<uint64_t>(number(value, "seed", 0, INT64_MAX));
  else if (name == "greedy") s.greedy = on_off(value, name);
  else if (name == "stop") state.stop_strings = value.empty() ? std::vector<std::string>() : std::vector{value};
  else if (name == "max-tokens") {
    options_.generate.max_tokens = number(value, "max-tokens", 1, INT64_MAX);
    return;
  } else if (name == "stats") {
    options_.stats = on_off(value, name);
    return;
  } else {
    std::string known;
    for (const Setting& setting : kSettings) known += (known.empty() ? "" : ", ") + std::string(setting.name);
    throw Error(ErrorKind::argument, "", "/set", "one of " + known, printable(name, 40));
  }
  const Session& session = current().session();
  check_generation(state, session.model().config().vocab_size, session.size(), "");
  current().session().generation() = std::move(state);
}

void ChatShell::help(const std::string& about) {
  for (const Command& c : commands()) {
    if (!about.empty() && about != c.name && "/" + about != c.name) continue;
    out(fmt::format("  {:<32} {}\n", fmt::format("{} {}", c.name, c.arguments), c.help));
  }
  if (!about.empty()) return;
  out("Ctrl-C stops a reply; the state stays whole, and /continue goes on with it.\n"
      "A line that ends in \\ goes on in the next; // begins a message with a slash.\n");
}

void ChatShell::show_messages() {
  for (const Message& m : current().messages()) {
    out(fmt::format("{}: {}\n", m.role, printable(m.content, 4000)));
  }
}

void ChatShell::show_state() {
  Session& session = current().session();
  const ModelConfig& config = session.model().config();
  const KvShape& kv = session.kv().shape();
  int64_t window = 0;
  for (const int64_t w : config.window) window = std::max(window, w);
  out(fmt::format("model        {}, {} layers, {} kv heads of {}\n", config.architecture, kv.layers, kv.kv_heads, kv.head_dim));
  out(fmt::format("tokens       {} of {}, {} messages\n", session.size(), session.capacity(), current().messages().size()));
  out(fmt::format("cache        {} in {}, {} of {} positions visible\n", kv_type_name(kv.type),
                  bytes_text(static_cast<double>(kv.block_bytes()) * static_cast<double>(session.kv().blocks())),
                  visible_positions(session.kv()), session.size()));
  if (window > 0) {
    const auto sliding = std::count_if(config.window.begin(), config.window.end(), [](int64_t w) { return w > 0; });
    out(fmt::format("window       {} positions in {} of {} layers{}\n", window, sliding, config.layers,
                    session.size() > window ? fmt::format("; positions before {} are out of their sight", session.size() - window) : ""));
  }
  if (!session.prunes().empty()) out(fmt::format("pruned       {} times; rewinding is possible down to {}\n", session.prunes().size(), session.prunes().back().left()));
  const StateDigests d = digests_of(session);
  out(fmt::format("contract     {} version {}\n", contract_name(session.compute()), kContractVersion));
  for (const auto& [name, digest] : {std::pair{"tokens", d.tokens}, {"logits", d.logits}, {"kv", d.kv}, {"state", d.state}}) {
    out(fmt::format("{:<12} {}\n", name, digest_text(digest)));
  }
}

void ChatShell::verify_state() {
  Session& session = current().session();
  const double start = seconds();
  SessionOptions o;
  o.capacity = session.capacity();
  o.kv_type = session.kv().shape().type;
  o.compute = session.compute();
  Session again = replay(session.shared_model(), session.state(), o);
  const auto difference = first_difference(again.state(), session.state(), o.compute.blas ? kBlasTolerance : 0);
  if (difference) throw Error(ErrorKind::mismatch, "", "verify", difference->text(), "the live state");
  out(fmt::format("equal{}: {} tokens computed again in {:.0f} ms, every byte of keys, values and logits compared\n",
                  o.compute.blas ? " within the tolerance of f32-blas" : "", session.size(), (seconds() - start) * 1e3));
}

}  // namespace stet::tool
