// A sentencepiece model (sentencepiece_model.proto), as far as it decides ids.
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

// Reads and checks the content of a tokenizer.model; `file` names it in errors. Throws Error:
// format for what is no such model; unsupported for settings that nothing here encodes with.
SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& file);

// Returns the byte that a piece of type BYTE stands for ("<0xE2>"), or -1.
int sentencepiece_byte(std::string_view piece);

// Encodes texts with a checked model. Text is valid UTF-8.
class SentencePieceTextEncoder {
 public:
  virtual ~SentencePieceTextEncoder() = default;
  // Appends the ids of a text. Throws Error: argument where a control piece would come out of it.
  virtual void encode(std::string_view text, std::vector<int32_t>& out) const = 0;
};

// Where texts can be cut before a space: the ids of the parts are those of the whole. A text takes
// some hundred times its memory while it is encoded, its parts only theirs.
class SentencePieceCuts {
 public:
  explicit SentencePieceCuts(const SentencePieceModel& model);
  // Returns how many bytes of a text to encode next: at most `size`, or more where that is the
  // first place, or the end.
  size_t part(std::string_view text, size_t size) const;

 private:
  bool at(std::string_view text, size_t place) const;

  bool possible_;
  std::unordered_set<uint32_t> before_space_;  // characters which some piece has before a space
};

// Returns an encoder of ours, without the sentencepiece library, that gives the library's ids.
// Throws Error: unsupported for a unigram model, and for one with a character map.
std::unique_ptr<SentencePieceTextEncoder> sentencepiece_bpe(const SentencePieceModel& model,
                                                            const std::string& file);

}  // namespace stet
