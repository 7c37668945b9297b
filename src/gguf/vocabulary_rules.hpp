// The pre-tokenizers that GGUF files name in tokenizer.ggml.pre, as the tokenizer.json of the
// models that they were named for has them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace stet {

struct VocabularyRules {
  const char* name;
  // Patterns by which text is split, one after another; each match is a word.
  std::span<const char* const> patterns;
  bool ignore_merges = false;  // a word that the vocabulary has stays whole
  bool adds_bos = false;       // unless tokenizer.ggml.add_bos_token says otherwise
  bool nfc = false;            // text is brought into its normal form first
  bool digits = false;         // each is a word, before any pattern is looked for
};

// Null for a name that stet does not know.
const VocabularyRules* find_vocabulary_rules(std::string_view name);

// The pre_tokenizer of tokenizer.json.
nlohmann::ordered_json pre_tokenizer_json(const VocabularyRules& rules);

// The rules by which a tokenizer.json splits text, if possible of the same use of merges; null
// where none of them does.
const VocabularyRules* vocabulary_rules_of(const nlohmann::json& tokenizer);

}  // namespace stet
