// The interface between Tokenizer and the two kinds of vocabulary.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/text/added_tokens.hpp"
#include "src/text/token_decoder.hpp"
#include "src/text/vocabulary.hpp"

namespace stet {

class Encoder {
 public:
  virtual ~Encoder() = default;
  // Called once before encode, with all added tokens and the number of ids.
  virtual void set_added(const std::vector<AddedToken>& added, int32_t size) = 0;
  // Appends the ids of an input given in segments of valid UTF-8.
  virtual void encode(const std::vector<Segment>& segments, std::vector<int32_t>& out) const = 0;
};

// The contents of a vocabulary file.
struct TokenizerParts {
  std::string kind;       // "bpe", "sentencepiece"
  Vocabulary vocabulary;  // added tokens included
  std::vector<AddedToken> added;
  std::unordered_map<int32_t, size_t> added_index;  // key: id
  size_t added_bytes = 0;                           // total size of their texts
  std::unique_ptr<Encoder> encoder;
  TokenDecoder decoder;
  std::vector<int32_t> before, after;  // ids put around a text
  int32_t bos = -1;                    // used if tokenizer_config.json names none
  int32_t eos = -1;
  bool adds_bos = false;  // used if tokenizer_config.json does not say
  // Input of the fingerprint.
  nlohmann::json settings;
  std::vector<int32_t> table;  // merges, or scores and types
};

// `file` names the bytes in errors.
TokenizerParts parse_bpe_tokenizer(std::string_view bytes, const std::string& file);
// Selects the encoder of a sentencepiece model: the library or sentencepiece_bpe(). Both give equal
// ids, but ours reads only BPE without a character map. A build without the library uses ours.
enum class SentencePieceBy { library, own };
// `prefix_every_segment`: if the model puts a space before the text, it also does so after each
// added token (transformers' "legacy"). Throws an unsupported Error for models that a build without
// sentencepiece cannot encode.
TokenizerParts parse_sentencepiece_tokenizer(std::string_view bytes, const std::string& file,
                                             bool prefix_every_segment,
                                             SentencePieceBy by = SentencePieceBy::library);

// Adds a token to the parts. The vocabulary may already have it under the same id. Throws a format
// Error naming `field` if its text or id belongs to another token.
void add_token(TokenizerParts& parts, const AddedToken& token, const std::string& file,
               const std::string& field);

}  // namespace stet
