// Scripted conversations: one user message per line, or JSON with expected replies.
#include <fmt/format.h>

#include "src/base/json_value.hpp"
#include "stet/base/error.hpp"
#include "tools/chat/chat.hpp"
#include "tools/chat/input.hpp"
#include "tools/chat/signals.hpp"
#include "tools/command/words.hpp"

namespace stet::tool {
namespace {

struct ScriptTurn {
  std::string input;                    // a message or a command, as typed
  std::vector<Message> results;         // of tool calls, in place of `input`
  std::optional<std::string> expected;  // the whole reply
  std::vector<std::string> contains;    // texts that the reply must contain
};

const std::vector<std::string> kTurnFields = {"user",  "command",   "tool",    "expect",
                                              "model", "assistant", "contains"};

// Returns true for members of a recorded conversation that give positions. They are not compared.
bool is_recorded_position(const std::string& name) {
  return name == "ids" || name == "reply_starts" || name == "reply_ends";
}

struct Script {
  std::optional<std::string> system;
  std::vector<ScriptTurn> turns;
};

[[noreturn]] void fail(const std::string& where, const std::string& field,
                       const std::string& expected, const Json& found) {
  throw Error(ErrorKind::format, where, field, expected, printable(dump(found), 60));
}

std::string text_of(const Json& j, const std::string& where, const std::string& field) {
  if (!j.is_string()) fail(where, field, "a string", j);
  return j.get<std::string>();
}

// Reads the result of a tool call: a text, or an object with `content` and further members for the
// template, such as name and tool_call_id.
Message read_result(const Json& j, const std::string& where, const std::string& field) {
  Message result{"tool", "", "", 0, 0, false};
  if (!j.is_object()) {
    result.content = text_of(j, where, field);
    return result;
  }
  Json fields = j;
  if (fields.contains("role")) fail(where, field + ".role", "no role", fields["role"]);
  result.content = text_of(j.value("content", Json()), where, field + ".content");
  fields.erase("content");
  if (!fields.empty()) result.fields = dump(fields);
  return result;
}

// Reads a message or a command. The shell takes a blank one for an empty line, which sends nothing.
std::string input_of(const Json& j, const std::string& where, const std::string& field) {
  std::string text = text_of(j, where, field);
  if (text.find_first_not_of(" \t\n") == std::string::npos)
    fail(where, field, "a message, not a blank one", j);
  return text;
}

ScriptTurn read_turn(const Json& j, const std::string& where, const std::string& field) {
  ScriptTurn turn;
  if (j.is_string()) {
    turn.input = input_of(j, where, field);
    return turn;
  }
  if (!j.is_object() || j.contains("user") + j.contains("command") + j.contains("tool") != 1)
    fail(where, field, "a string, or an object with user, command or tool", j);
  for (const auto& [name, value] : j.items()) {
    const std::string at = field + "." + name;
    if (name == "user") {
      turn.input = input_of(value, where, at);
      if (turn.input.starts_with("/")) turn.input.insert(0, "/");
    } else if (name == "command") {
      turn.input = input_of(value, where, at);
      if (!turn.input.starts_with("/")) fail(where, at, "a command that begins with /", value);
    } else if (name == "tool") {
      for (const Json& result : value.is_array() ? value : Json::array({value}))
        turn.results.push_back(read_result(result, where, at));
      if (turn.results.empty()) fail(where, at, "a result, or several", value);
    } else if (name == "expect" || name == "model" || name == "assistant") {
      if (turn.expected) fail(where, at, "one expected reply", value);
      turn.expected = text_of(value, where, at);
    } else if (name == "contains") {
      for (const Json& part : value.is_array() ? value : Json::array({value}))
        turn.contains.push_back(text_of(part, where, at));
    } else if (!is_recorded_position(name)) {
      fail(where, at, listed(kTurnFields) + did_you_mean(name, kTurnFields), value);
    }
  }
  return turn;
}

Script read_json(const Json& j, const std::string& where) {
  Script script;
  const Json* turns = &j;
  if (j.is_object()) {
    if (j.contains("system")) script.system = text_of(j["system"], where, "system");
    if (!j.contains("turns")) fail(where, "turns", "an array", Json());
    for (const auto& [name, value] : j.items()) {
      if (name != "system" && name != "turns" && !is_recorded_position(name))
        fail(where, name, listed({"system", "turns"}) + did_you_mean(name, {"system", "turns"}),
             value);
    }
    turns = &j["turns"];
  }
  if (!turns->is_array()) fail(where, "turns", "an array", *turns);
  for (const Json& turn : *turns)
    script.turns.push_back(
        read_turn(turn, where, "turns[" + std::to_string(script.turns.size()) + "]"));
  return script;
}

// Reads a script of lines, with the rules for typed lines.
Script read_lines(const std::string& text, const std::string& where) {
  Script script;
  InputLines lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.pop_back();
    const std::optional<std::string> turn = lines.add(line);
    if (turn && turn->find_first_not_of(" \t\n") != std::string::npos)
      script.turns.push_back({*turn, {}, std::nullopt, {}});
    at = end + 1;
  }
  if (lines.open()) throw Error(ErrorKind::format, where, "", lines.expected(), "the end");
  return script;
}

// Reads a script. A text that begins as JSON or is named .json is never read as lines.
Script read_script(const std::string& path) {
  const std::string text = read_prompt(path);
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (text.find('\0') != std::string::npos)
    throw Error(ErrorKind::format, path, "", "JSON, or lines of text",
                "a zero byte (UTF-16 begins with a byte order mark)");
  const bool opens = first != std::string::npos && (text[first] == '{' || text[first] == '[');
  if (opens || path.ends_with(".json")) {
    try {
      return read_json(parse_ordered_json(text, path), path);
    } catch (const Error& e) {
      if (e.expected != "valid JSON") throw;
      throw Error(e.kind, e.file, e.field, "JSON, or lines of text", e.found);
    }
  }
  return read_lines(text, path);
}

// Returns the error of a reply that is not as expected, or "".
std::string mismatch_text(const ScriptTurn& turn, const std::string& reply) {
  if (turn.expected && *turn.expected != reply)
    return fmt::format("expected \"{}\"", printable(*turn.expected, 400));
  for (const std::string& part : turn.contains) {
    if (reply.find(part) == std::string::npos)
      return fmt::format("expected it to contain \"{}\"", printable(part, 400));
  }
  return "";
}

void show_turn(const ScriptTurn& turn, bool is_command, const std::string& shown) {
  for (const Message& result : turn.results)
    out(fmt::format("{:<7}{}\n", "tool", printable(result.content, SIZE_MAX)));
  if (turn.results.empty())
    out(fmt::format("{:<7}{}\n", is_command ? "" : "user", printable(shown, SIZE_MAX)));
}

Json contents(const std::vector<Message>& messages) {
  Json all = Json::array();
  for (const Message& m : messages) all.push_back(m.content);
  return all;
}

}  // namespace

bool run_chat_script(ChatShell& shell, const ChatOptions& options) {
  const Script script = read_script(options.script);
  if (script.system) shell.current().set_system(*script.system);
  bool good = true;
  for (const ScriptTurn& turn : script.turns) {
    if (ChatSignals::ending() != 0) break;
    const bool is_command = turn.input.starts_with("/") && !turn.input.starts_with("//");
    const std::string shown = turn.input.substr(turn.input.starts_with("//") ? 1 : 0);
    if (!options.json) show_turn(turn, is_command, shown);
    shell.quiet = options.json || !is_command;
    shell.clear_last();
    if (!turn.results.empty())
      shell.send_results(turn.results);
    else if (!shell.input(turn.input))
      break;
    if (!shell.last()) {
      if (turn.expected || !turn.contains.empty())
        throw Error(ErrorKind::argument, options.script, "expect", "a turn with a reply",
                    printable(shown, 60));
      continue;
    }
    const std::string reply =
        shell.current().messages().empty() ? "" : shell.current().messages().back().content;
    const std::string wrong = mismatch_text(turn, reply);
    good = good && wrong.empty();
    if (options.json) {
      Json j =
          turn.results.empty() ? Json{{"user", shown}} : Json{{"tool", contents(turn.results)}};
      j.update(shell.last()->json());
      j["positions"] = shell.current().session().size();
      if (turn.expected || !turn.contains.empty()) j["as_expected"] = wrong.empty();
      j["digests"] = digests_json(digests_of(shell.current().session()));
      out(dump(j) + "\n");
    } else {
      if (!is_command) out(fmt::format("{:<7}{}\n", "model", printable(reply, SIZE_MAX)));
      if (!wrong.empty()) out(fmt::format("       NOT AS EXPECTED: {}\n", wrong));
      if (options.stats && shell.quiet) out(fmt::format("       ({})\n", shell.last()->text()));
    }
    flush_output();
    if (shell.last()->reply.stop == StopReason::interrupted) break;
  }
  return good;
}

}  // namespace stet::tool
