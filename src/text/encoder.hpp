// What the two kinds of vocabulary have in common for the Tokenizer.
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
  // Told once, before encode: all added tokens, and the number of ids.
  virtual void set_added(const std::vector<AddedToken>& added, int32_t size) = 0;
  // Appends the ids of an input given in segments. Text is valid UTF-8.
  virtual void encode(const std::vector<Segment>& segments, std::vector<int32_t>& out) const = 0;
};

// What a vocabulary file says.
struct TokenizerParts {
  std::string kind;       // "bpe", "sentencepiece"
  Vocabulary vocabulary;  // added tokens included
  std::vector<AddedToken> added;
  std::unordered_map<int32_t, size_t> added_index;  // by id
  size_t added_bytes = 0;                           // of all their texts
  std::unique_ptr<Encoder> encoder;
  TokenDecoder decoder;
  std::vector<int32_t> before, after;  // put around a text
  int32_t bos = -1;                    // where tokenizer_config.json does not say
  int32_t eos = -1;
  bool adds_bos = false;  // likewise
  // For the fingerprint.
  nlohmann::json settings;
  std::vector<int32_t> table;  // merges, or scores and types
};

// `file` names the bytes in errors.
TokenizerParts parse_bpe_tokenizer(std::string_view bytes, const std::string& file);
// Encodes a sentencepiece model: the library, or sentencepiece_bpe(). Both give the same ids; ours
// reads BPE without a character map alone. A build without the library always takes ours.
enum class SentencePieceBy { library, own };
// `prefix_every_segment`: where the model puts a space before the text, it does so after each added
// token too (transformers' "legacy"). Throws Error: unsupported for models that a build without
// sentencepiece cannot encode.
TokenizerParts parse_sentencepiece_tokenizer(std::string_view bytes, const std::string& file,
                                             bool prefix_every_segment,
                                             SentencePieceBy by = SentencePieceBy::library);

// Adds a token to the parts. It may be in the vocabulary already, under the same id. Throws Error:
// format, naming `field`, where text or id belong to another.
void add_token(TokenizerParts& parts, const AddedToken& token, const std::string& file,
               const std::string& field);

}  // namespace stet
