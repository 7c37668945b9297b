// The option --speculate: speculative decoding, which makes replies faster.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "stet/generate/draft_model.hpp"
#include "tools/command/command.hpp"

namespace stet::tool {

// The model whose tokens are drafted, and the options that its draft model shares.
struct DraftedModel {
  std::shared_ptr<const Model> model;
  const ModelOptions& options;
  const Tokenizer* tokenizer;  // or null
  ComputeOptions compute;
  int64_t capacity;
};

class SpeculateOption {
 public:
  void add_to(Command& app);
  // Returns a function that makes drafters for sessions of this model; null if the option is off.
  // Loads the draft model. Says on stderr if the contract ignores drafts.
  std::function<std::shared_ptr<Drafter>()> drafters(const DraftedModel& drafted) const;
  // Sets GenerateOptions::speculator, which lives as long as this.
  void apply(const Session& session, const ModelOptions& model, const Tokenizer* tokenizer,
             GenerateOptions& options);
  // Passes the drafter another reply to the same prompt, in which it may find drafts.
  void add(std::span<const int32_t> tokens);

 private:
  std::string how_ = "off";
  std::shared_ptr<Speculator> speculator_;  // shared by copies
};

// Adds the drafted and accepted tokens to the timings of a reply that was drawn with a speculator.
void add_drafted(Json& timings, const Reply& reply, bool speculated);

}  // namespace stet::tool
