// Maps ids to pieces and pieces to ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stet {

class Vocabulary {
 public:
  // Returns false and changes nothing if the piece or the id is taken. `id` must be >= 0.
  bool add(std::string_view piece, int32_t id);

  // Returns -1 if there is none.
  int32_t find(std::string_view piece) const;
  bool has(int32_t id) const;
  // Returns "" if there is none. The result is valid until the next add.
  std::string_view piece(int32_t id) const;
  // Returns one more than the highest id.
  int32_t size() const { return static_cast<int32_t>(pieces_.size()); }
  // Returns the number of pieces.
  size_t count() const { return count_; }

 private:
  struct PieceRange {
    size_t begin;
    int64_t length;  // -1: no piece has this id
  };
  size_t slot_of(std::string_view piece) const;
  void grow();

  std::string text_;                // all pieces
  std::vector<PieceRange> pieces_;  // index: id
  std::vector<int32_t> slots_;      // hash table; -1: empty; size a power of two
  size_t count_ = 0;
};

}  // namespace stet
