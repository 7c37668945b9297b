// Pieces by id and ids by piece.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stet {

class Vocabulary {
 public:
  // False, and nothing changes, where the piece or the id is taken. id >= 0.
  bool add(std::string_view piece, int32_t id);

  // -1 where there is none.
  int32_t find(std::string_view piece) const;
  bool has(int32_t id) const;
  // "" where there is none. Valid until the next add.
  std::string_view piece(int32_t id) const;
  // One more than the highest id.
  int32_t size() const { return static_cast<int32_t>(pieces_.size()); }
  // How many pieces there are.
  size_t count() const { return count_; }

 private:
  struct PieceRange {
    size_t begin;
    int64_t length;  // -1: no piece has this id
  };
  size_t slot_of(std::string_view piece) const;
  void grow();

  std::string text_;                // all pieces
  std::vector<PieceRange> pieces_;  // by id
  std::vector<int32_t> slots_;  // open addressing by hash of the piece; -1 is empty; a power of two
  size_t count_ = 0;
};

}  // namespace stet
