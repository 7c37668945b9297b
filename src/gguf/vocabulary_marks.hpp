// Which tokens of a GGUF file begin a text and end a reply.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "src/gguf/gguf.hpp"
#include "src/gguf/vocabulary_rules.hpp"

namespace stet {

// A choice, and the key or the rule that made it.
struct GgufStop {
  int64_t id;
  std::string from;
};
struct GgufAddsBos {
  bool adds;
  std::string from;
};

// The token of tokenizer.ggml.NAME; nothing where the key is absent or names none of `vocab_size`
// tokens, as -1 does. A sentencepiece vocabulary has some without a key, as llama.cpp has them.
std::optional<int64_t> gguf_special_id(const Gguf& keys, const std::string& name,
                                       int64_t vocab_size);

// The tokens that end a reply: those that the file names; and where it names none as the end of a
// turn, the one that its chat template writes behind a reply, found by its text.
std::vector<GgufStop> gguf_stops(const Gguf& keys, int64_t vocab_size);

// Whether a text begins with bos, where `rules` are those of tokenizer.ggml.pre, if any.
GgufAddsBos gguf_adds_bos(const Gguf& keys, const VocabularyRules* rules);

// The ids of generation_config.json; its member "stet" says where the stop tokens come from.
nlohmann::ordered_json gguf_ids_config(const Gguf& keys, int64_t vocab_size);

}  // namespace stet
