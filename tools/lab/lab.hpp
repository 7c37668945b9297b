// Shared by the subcommands of the laboratory: a session from a prompt or a state.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stet/base/error.hpp"
#include "tools/lab/interventions.hpp"

namespace stet::tool {

void add_score(Command& app);

// The options -m, a prompt (text, ids or one user message), --from and --intervene.
struct LabOptions {
  ModelOptions model;
  PromptOptions prompt;
  RestoreFileOptions restore;
  InterventionOption interventions;
  std::string from;

  void add_to(Command& app);
  void add_without_prompt_to(Command& app);
};

// A session, after the state of --from if given, and the tokens to process in it.
struct LabWork {
  std::shared_ptr<const Tokenizer> tokenizer;  // may be null
  Session session;
  std::vector<int32_t> ids;
};
LabWork begin(LabOptions& options);

// Returns f(), which opens a second snapshot, a delta whose parent --other-parent names. Errors
// about the parent name that option.
template <class F>
auto with_other_parent(const F& f) {
  const auto named = [](std::string text) {
    const size_t at = text.find("--parent");
    return at == std::string::npos ? text : text.replace(at, 8, "--other-parent");
  };
  try {
    return f();
  } catch (const Error& e) {
    throw Error(e.kind, e.file, e.field, e.expected, named(e.found));
  } catch (const UsageError& e) {
    throw UsageError(named(e.what()));
  }
}

// Parses a JSON object on a line of standard input. Throws a format Error that names the line for
// anything else and for a field that is not in `fields`.
Json parse_line(const std::string& line, const std::string& where,
                const std::vector<std::string>& fields);

// A line of --jsonl: {"prompt": TEXT}, {"ids": [...]} or {"say": TEXT}, and "id", which is copied
// to the answer.
struct LabLine {
  std::string where;
  Json id;  // null if absent
  LabWork work;
};
// Calls f for every line of standard input, with a fork of the session of the options.
void each_lab_line(LabOptions& options, const std::function<void(LabLine&)>& f);

// Returns the tokens of a user message, through the chat template, that follow the content of
// `session`. Rewinds the session to where they begin. The system message and the functions are
// those of `options`, if it has any.
std::vector<int32_t> begin_message(Session& session,
                                   const std::shared_ptr<const Tokenizer>& tokenizer,
                                   const PromptOptions& options, const std::string& text);

// Throws an argument Error for the first number that is not finite, since JSON and tables would show
// it as a result. `where` is a line of standard input, a subcommand or an option.
void require_finite(const Json& results, const std::string& where);

// Parses "3..9,12" to sorted, distinct positions; "" is all of [begin, end).
std::vector<int64_t> parse_positions(const std::string& text, const char* option, int64_t begin,
                                     int64_t end);

// Parses numbers of layers or heads, "1,2,3" or "[1,2,3]". Ends with a usage error for others.
std::vector<int64_t> parse_list(const std::string& text, const char* option);

// Returns a token's text, quoted and escaped, or its id without a tokenizer.
std::string token_text(const Tokenizer* tokenizer, int32_t id);

}  // namespace stet::tool
