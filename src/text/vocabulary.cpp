#include "src/text/vocabulary.hpp"

#include <utility>

#include "kernels/xxh3.hpp"

namespace stet {

// Returns the slot of the piece, or the empty slot where it belongs.
size_t Vocabulary::slot_of(std::string_view piece) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = xxh3_64(piece.data(), piece.size()) & mask;
  while (slots_[slot] >= 0 && this->piece(slots_[slot]) != piece) slot = (slot + 1) & mask;
  return slot;
}

void Vocabulary::grow() {
  std::vector<int32_t> old(slots_.empty() ? 64 : slots_.size() * 2, -1);
  std::swap(old, slots_);
  for (const int32_t id : old) {
    if (id >= 0) slots_[slot_of(piece(id))] = id;
  }
}

bool Vocabulary::add(std::string_view piece, int32_t id) {
  if (has(id) || find(piece) >= 0) return false;
  if ((count_ + 1) * 2 > slots_.size()) grow();
  slots_[slot_of(piece)] = id;
  if (id >= size()) pieces_.resize(static_cast<size_t>(id) + 1, {0, -1});
  pieces_[static_cast<size_t>(id)] = {text_.size(), static_cast<int64_t>(piece.size())};
  text_ += piece;
  ++count_;
  return true;
}

int32_t Vocabulary::find(std::string_view piece) const {
  return slots_.empty() ? -1 : slots_[slot_of(piece)];
}

bool Vocabulary::has(int32_t id) const {
  return id >= 0 && id < size() && pieces_[static_cast<size_t>(id)].length >= 0;
}

std::string_view Vocabulary::piece(int32_t id) const {
  if (!has(id)) return {};
  const PieceRange& range = pieces_[static_cast<size_t>(id)];
  return std::string_view(text_).substr(range.begin, static_cast<size_t>(range.length));
}

}  // namespace stet
