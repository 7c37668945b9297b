// Reads the files beside a vocabulary: tokenizer_config.json, chat templates, added tokens.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/text/encoder.hpp"
#include "stet/text/tokenizer.hpp"

namespace stet {

struct TokenizerConfig {
  bool present = false;  // tokenizer_config.json exists
  std::string file, tokenizer_class, chat_template;
  std::string bos, eos;  // texts of tokens
  std::map<std::string, std::string, std::less<>> named_templates;
  // The places of templates, for errors, by name; "" is chat_template.
  std::map<std::string, std::string, std::less<>> template_places;
  std::vector<std::pair<std::string, std::string>> special;  // names and texts of all named tokens
  bool has_added_decoder = false;
  std::vector<std::pair<std::string, AddedToken>> added;   // from added_tokens_decoder, by field
  std::vector<std::pair<std::string, AddedToken>> listed;  // from added_tokens.json, by field
  std::optional<bool> add_bos, add_eos, legacy, add_prefix_space;
};

// Reads those of the files that exist. Chat templates come from chat_template.jinja and
// additional_chat_templates, else from tokenizer_config.json, else from chat_template.json. As in
// transformers, added_tokens.json and special_tokens_map.json count only if tokenizer_config.json
// lists no added tokens. `where` prefixes file names in errors. Throws a format Error.
TokenizerConfig read_tokenizer_config(const Tokenizer::Files& files, const std::string& where);

// Key of a GGUF file's chat template. Keys of named ones add "." and the name.
inline constexpr const char* kGgufTemplate = "tokenizer.chat_template";
// Returns a text of the member "stet" of a tokenizer_config.json that was made from a GGUF file, or
// "".
std::string tokenizer_note(const JsonNode& root, const char* name);

// Adds tokens that the vocabulary file lacks, and marks those that the config names as special.
void add_config_tokens(const TokenizerConfig& config, TokenizerParts& parts);

// Returns the content of a file, or null if there is none of that name.
const std::string* find_file(const Tokenizer::Files& files, std::string_view name);

}  // namespace stet
