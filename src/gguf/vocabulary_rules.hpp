// Lists the pre-tokenizers that GGUF files name in tokenizer.ggml.pre. Each follows the
// tokenizer.json of the model that it was named for.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace stet {

struct VocabularyRules {
  const char* name;
  // Patterns that split the text one after another. Each match is a word.
  std::span<const char* const> patterns;
  bool ignore_merges = false;  // a word in the vocabulary is not split
  bool adds_bos = false;       // unless tokenizer.ggml.add_bos_token is set
  bool nfc = false;            // text is normalised to NFC first
  bool digits = false;         // each digit is a word, before patterns apply
};

// Returns the rules of that name, or null.
const VocabularyRules* find_vocabulary_rules(std::string_view name);

// Returns the pre_tokenizer of tokenizer.json.
nlohmann::ordered_json pre_tokenizer_json(const VocabularyRules& rules);

// Returns the rules by which a tokenizer.json splits text, preferably with the same use of merges.
// Returns null if no rules match.
const VocabularyRules* vocabulary_rules_of(const nlohmann::json& tokenizer);

}  // namespace stet
