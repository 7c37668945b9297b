// A sentencepiece model (sentencepiece_model.proto), as far as it decides ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stet {

struct SentencePiece {
  std::string text;
  float score = 0;
  uint64_t type = 1;  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
};

struct SentencePieceModel {
  std::vector<SentencePiece> pieces;
  uint64_t model_type = 1;  // 1 unigram, 2 BPE
  bool byte_fallback = false, whitespace_as_suffix = false;
  int32_t bos_id = 1, eos_id = 2;
  std::string normalizer_name, character_map;
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

// The content of a tokenizer.model; `file` names it in errors. Throws Error: format for what is no
// such model; unsupported in a build without sentencepiece.
SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& file);

}  // namespace stet
