// What the laboratory's subcommands share: a session to look at, from a prompt or a state.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tools/lab/interventions.hpp"

namespace stet::tool {

// -m, a prompt, --from, --intervene.
struct LabOptions {
  ModelOptions model;
  PromptOptions prompt;
  RestoreFileOptions restore;
  InterventionOption interventions;
  std::string from;

  void add_to(CLI::App& app);
  void add_without_prompt_to(CLI::App& app);
};

// A session, and what is to go through it: after the state of --from, where there is one.
struct LabWork {
  std::shared_ptr<const Tokenizer> tokenizer;  // null where there is none
  Session session;
  std::vector<int32_t> ids;
};
LabWork begin(LabOptions& options);

// "Hello", escaped, for tables; the id where there is no tokenizer.
std::string token_text(const Tokenizer* tokenizer, int32_t id);

}  // namespace stet::tool
