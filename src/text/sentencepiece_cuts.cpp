#include "src/text/sentencepiece.hpp"
#include "stet/text/utf8.hpp"

namespace stet {
namespace {

constexpr uint32_t kSpaceInPieces = 0x2581;

uint32_t as_in_pieces(uint32_t character) { return character == ' ' ? kSpaceInPieces : character; }

}  // namespace

// A position that is inside no piece separates merges, so both sides can be encoded separately.
// Some models depend on the whole text and are never cut. Reasons are changes of spaces at its
// ends, fused unknown characters, character maps, and the rounded sums of unigram models.
SentencePieceCuts::SentencePieceCuts(const SentencePieceModel& model)
    : possible_(model.model_type == 2 && model.byte_fallback && model.character_map.empty() &&
                !model.add_dummy_prefix && !model.remove_extra_whitespaces) {
  for (const SentencePiece& piece : model.pieces) {
    uint32_t before = 0;
    for (size_t at = 0; at < piece.text.size();) {
      const Utf8 c = utf8_at(piece.text, at);
      if (at > 0 && as_in_pieces(c.code) == kSpaceInPieces) before_space_.insert(before);
      before = as_in_pieces(c.code);
      at += c.length;
    }
  }
}

bool SentencePieceCuts::at(std::string_view text, size_t place) const {
  if (text[place] != ' ') return false;
  size_t begin = place - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return !before_space_.contains(as_in_pieces(utf8_at(text, begin).code));
}

size_t SentencePieceCuts::part(std::string_view text, size_t size) const {
  if (!possible_ || text.size() <= size) return text.size();
  for (size_t place = size; place > 0; --place) {
    if (at(text, place)) return place;
  }
  for (size_t place = size + 1; place < text.size(); ++place) {
    if (at(text, place)) return place;
  }
  return text.size();
}

}  // namespace stet
