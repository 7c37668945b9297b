// Finds the tokens of a GGUF file that begin a text and end a reply.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "src/gguf/gguf.hpp"
#include "src/gguf/vocabulary_rules.hpp"

namespace stet {

// A token that ends a reply, and the key or rule that names it.
struct GgufStop {
  int64_t id;
  std::string from;
};
struct GgufAddsBos {
  bool adds;
  std::string from;
};

// Returns the token of tokenizer.ggml.NAME. Returns nothing if the key is missing or, as -1 does,
// names none of `vocab_size` tokens. As in llama.cpp, a sentencepiece vocabulary has some of them
// without a key.
std::optional<int64_t> gguf_special_id(const Gguf& keys, const std::string& name,
                                       int64_t vocab_size);

// Returns the tokens that end a reply, as the file names them. If it names no end of a turn, adds
// the token that its chat template writes after a reply.
std::vector<GgufStop> gguf_stops(const Gguf& keys, int64_t vocab_size);

// Returns whether a text begins with bos. `rules` are those of tokenizer.ggml.pre, or null.
GgufAddsBos gguf_adds_bos(const Gguf& keys, const VocabularyRules* rules);

// Returns the ids for generation_config.json. Its member "stet" says where the stop tokens come
// from.
nlohmann::ordered_json gguf_ids_config(const Gguf& keys, int64_t vocab_size);

}  // namespace stet
