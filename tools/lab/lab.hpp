// What the laboratory's subcommands share: a session to look at, from a prompt or a state.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tools/lab/interventions.hpp"

namespace stet::tool {

void add_score(Command& app);

// -m, a prompt (raw, ids, or one message of the user), --from, --intervene.
struct LabOptions {
  ModelOptions model;
  PromptOptions prompt;
  RestoreFileOptions restore;
  InterventionOption interventions;
  std::string from;

  void add_to(Command& app);
  void add_without_prompt_to(Command& app);
};

// A session, and what is to go through it: after the state of --from, where there is one.
struct LabWork {
  std::shared_ptr<const Tokenizer> tokenizer;  // null where there is none
  Session session;
  std::vector<int32_t> ids;
};
LabWork begin(LabOptions& options);

// An object of JSON on a line of standard input. Throws a format Error, naming the line, for what
// is none and for a field that is not among `fields`.
Json parse_line(const std::string& line, const std::string& where,
                const std::vector<std::string>& fields);

// What a line of --jsonl asks for: {"prompt": TEXT}, {"ids": [...]} or {"say": TEXT}, and "id",
// which is given back.
struct LabLine {
  std::string where;
  Json id;  // null: none was given
  LabWork work;
};
// Calls f for every line of standard input, with a fork of the session that the options name.
void each_lab_line(LabOptions& options, const std::function<void(LabLine&)>& f);

// The tokens of a message of the user, through the chat template, behind what `session` holds,
// which is rewound to where they go. `system`: a system message in place of the one that is there,
// or "".
std::vector<int32_t> begin_message(Session& session,
                                   const std::shared_ptr<const Tokenizer>& tokenizer,
                                   const std::string& system, const std::string& text);

// "3..9,12": positions 3 to 9 and 12, in order, each once; "": all of [begin, end).
std::vector<int64_t> parse_positions(const std::string& text, const char* option, int64_t begin,
                                     int64_t end);

// "Hello", escaped, for tables; the id where there is no tokenizer.
std::string token_text(const Tokenizer* tokenizer, int32_t id);

}  // namespace stet::tool
