// What the subcommands of `stet` share: options, opening models and tokenizers, output.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "stet/generate.hpp"
#include "stet/session.hpp"
#include "stet/snapshot.hpp"
#include "stet/tokenizer.hpp"

namespace stet::tool {

using Json = nlohmann::ordered_json;

// Every subcommand adds itself to the application and runs when it was named.
void add_generate(CLI::App& app);
void add_save(CLI::App& app);
void add_resume(CLI::App& app);
void add_logits(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_detokenize(CLI::App& app);
void add_inspect(CLI::App& app);
void add_bench(CLI::App& app);

// -m and how to compute.
struct ModelOptions {
  std::string directory;
  SessionOptions session;
  std::string compute = "f32", gemm = "own", kv;

  void add_to(CLI::App& app);
  void add_compute_to(CLI::App& app);  // all but -m and --kv
  // Loads the model, with a line on stderr when that takes long and someone watches.
  std::shared_ptr<const Model> load_model();
  // Checked and complete session options.
  SessionOptions session_options() const;
};

// The tokenizer of a checkpoint; null when the directory has none.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& directory);
std::shared_ptr<const Tokenizer> require_tokenizer(const std::string& directory);

// --prompt, --prompt-file, --ids, --ids-file: what is to be processed. Several prompts are several turns.
struct PromptOptions {
  std::vector<std::string> prompts;
  std::string prompt_file, ids, ids_file, bos = "auto";

  void add_to(CLI::App& app);
  bool given() const;
  // The turns as token ids. A tokenizer is needed for text alone; bos stands only where `fresh` is set and first.
  std::vector<std::vector<int32_t>> turns(const std::shared_ptr<const Tokenizer>& tokenizer, bool fresh) const;
};

Tokenizer::Bos bos_of(const std::string& name);

// Sampling and stop options; those that were given replace what `state` holds.
struct SamplingOptions {
  std::optional<double> temperature, top_p, min_p, typical_p, repetition_penalty;
  std::optional<int> top_k;
  std::optional<uint64_t> seed;
  bool greedy = false, sample = false;
  std::vector<std::string> stop_strings;
  std::vector<int32_t> stop_ids;

  void add_to(CLI::App& app);
  void apply(GenerationState& state) const;
};

std::vector<int32_t> parse_ids(const std::string& text, const std::string& where);
double seconds();  // monotonic

// Processes a prompt with a progress line on stderr when it takes over a second and stderr is a terminal.
void prefill(Session& session, std::span<const int32_t> ids);

Json digests_json(const StateDigests& digests);
std::string bytes_text(double bytes);  // "1.5 MB"

}  // namespace stet::tool
