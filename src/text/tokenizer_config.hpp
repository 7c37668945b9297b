// What stands beside a vocabulary file: tokenizer_config.json, chat templates, added tokens.
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
  bool present = false;  // there is a tokenizer_config.json
  std::string file, tokenizer_class, chat_template;
  std::string bos, eos;  // texts of tokens
  std::map<std::string, std::string, std::less<>> named_templates;
  std::vector<std::pair<std::string, std::string>> special;  // names and texts of all named tokens
  bool has_added_decoder = false;
  std::vector<std::pair<std::string, AddedToken>> added;   // of added_tokens_decoder, by field
  std::vector<std::pair<std::string, AddedToken>> listed;  // of added_tokens.json, by field
  std::optional<bool> add_bos, add_eos, legacy, add_prefix_space;
};

// Reads all of these files that are there. Chat templates are taken from chat_template.jinja and
// additional_chat_templates, else from tokenizer_config.json, else from chat_template.json;
// added_tokens.json and special_tokens_map.json count where tokenizer_config.json lists no added
// tokens, as in transformers. `where` prefixes file names in errors. Throws Error: format.
TokenizerConfig read_tokenizer_config(const Tokenizer::Files& files, const std::string& where);

// Adds the tokens that the vocabulary file does not have, and marks those that the config names as
// special.
void add_config_tokens(const TokenizerConfig& config, TokenizerParts& parts);

// Null where there is no file of that name.
const std::string* find_file(const Tokenizer::Files& files, std::string_view name);

}  // namespace stet
