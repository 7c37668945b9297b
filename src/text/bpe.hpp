// Encodes one word by byte-pair encoding: merges neighbouring symbols, the earliest learned pair
// first.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "src/text/vocabulary.hpp"

namespace stet {

// A hash table of merges, keyed by their left and right ids.
class MergeTable {
 public:
  struct Merge {
    int32_t left, right, result;
    int32_t rank;  // lower ranks merge earlier
  };
  void reserve(size_t count);
  // Adds a merge. As in `tokenizers`, a known pair gets the new rank.
  void add(const Merge& merge);
  const Merge* find(int32_t left, int32_t right) const;
  size_t count() const { return count_; }

 private:
  size_t slot_of(int32_t left, int32_t right) const;
  std::vector<Merge> slots_;  // open addressing; left -1: empty; size a power of two
  size_t count_ = 0;
};

struct BpeOptions {
  bool bytes = false;          // words start as bytes instead of characters
  bool byte_fallback = false;  // unknown characters become "<0xE2>" ...
  bool fuse_unk = false;
  bool ignore_merges = false;  // a word that is a piece is not split
  int32_t unk = -1;
  std::string prefix;  // before symbols other than the first of a word
  std::string suffix;  // after the last symbol
};

class Bpe {
 public:
  // Pieces are bytes or characters of text, depending on options.bytes.
  Bpe(Vocabulary pieces, MergeTable merges, BpeOptions options);

  // One flag per id: true if text must not be encoded as that id.
  using Barred = std::vector<bool>;

  // Working memory of one thread. It caches short words, so it serves one list of ids and one set
  // of barred ids. The text of the words must not move.
  class Memory {
   public:
    explicit Memory(size_t text_size);

   private:
    friend class Bpe;
    struct Symbol {
      int32_t id, previous, next;  // -1: none; id -1: merged away
    };
    struct Candidate {
      uint64_t order;  // rank << 32 | index of the left symbol
      int32_t result;
      bool operator<(const Candidate& other) const {
        return order > other.order;
      }  // so that the heap's top is the least
    };
    struct Known {
      std::string_view word;
      size_t begin, count;  // in the list of ids
    };
    std::vector<Symbol> symbols_;
    std::vector<Candidate> heap_;
    std::vector<Known> known_;  // by hash; unused for short inputs
  };

  // Appends the ids of a word. `barred` may be null: no id is barred.
  void encode(std::string_view word, const Barred* barred, Memory& memory,
              std::vector<int32_t>& out) const;

 private:
  int32_t find(std::string_view piece, const Barred* barred) const;
  void add_symbols(std::string_view word, const Barred* barred, Memory& memory) const;
  void merge(const Barred* barred, Memory& memory) const;
  void compute(std::string_view word, const Barred* barred, Memory& memory,
               std::vector<int32_t>& out) const;

  Vocabulary pieces_;
  MergeTable merges_;
  BpeOptions options_;
  int32_t byte_ids_[256];      // piece of each byte if `bytes` is set; else -1
  int32_t fallback_ids_[256];  // "<0x00>" ...
};

}  // namespace stet
