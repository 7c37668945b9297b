// The parts of a sentencepiece model (sentencepiece_model.proto) that decide ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace stet {

struct SentencePiece {
  std::string text;
  float score = 0;
  uint64_t type = 1;  // one of SentencePieceType
};

enum SentencePieceType : uint64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

struct SentencePieceModel {
  std::vector<SentencePiece> pieces;
  uint64_t model_type = 1;  // 1 unigram, 2 BPE
  bool byte_fallback = false, whitespace_as_suffix = false;
  int32_t bos_id = 1, eos_id = 2;
  std::string normalizer_name, character_map;
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

// Parses and checks the content of a tokenizer.model; `file` names it in errors. Throws a format
// Error for anything else, and an unsupported Error for settings that stet does not have.
SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& file);

// Returns the byte of a piece of type BYTE ("<0xE2>"), or -1.
int sentencepiece_byte(std::string_view piece);

// Encodes texts of valid UTF-8 with a checked model.
class SentencePieceTextEncoder {
 public:
  virtual ~SentencePieceTextEncoder() = default;
  // Appends the ids of a text. Throws an argument Error if that would produce a control piece.
  virtual void encode(std::string_view text, std::vector<int32_t>& out) const = 0;
};

// Finds spaces before which a text can be cut without changing its ids. Encoding takes some hundred
// times the memory of a text, so long texts are encoded in parts.
class SentencePieceCuts {
 public:
  explicit SentencePieceCuts(const SentencePieceModel& model);
  // Returns how many bytes of a text to encode next. That is all of a text of at most `size` bytes,
  // otherwise up to the last cut within `size` bytes. If there is none, up to the first cut after
  // that, or to the end.
  size_t part(std::string_view text, size_t size) const;

 private:
  bool at(std::string_view text, size_t place) const;

  bool possible_;
  std::unordered_set<uint32_t> before_space_;  // characters that precede a space in a piece
};

// Returns stet's own encoder, which gives the same ids as the sentencepiece library. Throws an
// unsupported Error for a unigram model or a character map.
std::unique_ptr<SentencePieceTextEncoder> sentencepiece_bpe(const SentencePieceModel& model,
                                                            const std::string& file);

}  // namespace stet
