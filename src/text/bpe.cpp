#include "src/text/bpe.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/xxh3.hpp"
#include "stet/base/error.hpp"
#include "stet/text/utf8.hpp"

namespace stet {
namespace {

constexpr size_t kKnownWords = 1 << 14;
constexpr size_t kLongestKnown = 64;  // bytes

}  // namespace

void MergeTable::reserve(size_t count) {
  size_t size = 16;
  while (size < count * 2) size *= 2;
  slots_.assign(size, {-1, -1, -1, 0});
}

// Returns the slot of a pair, or the empty slot where it belongs.
size_t MergeTable::slot_of(int32_t left, int32_t right) const {
  const uint64_t key = uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  const size_t mask = slots_.size() - 1;
  size_t slot = (key * 0x9E3779B97F4A7C15u) >> 20 & mask;
  while (slots_[slot].left >= 0 && (slots_[slot].left != left || slots_[slot].right != right)) {
    slot = (slot + 1) & mask;
  }
  return slot;
}

void MergeTable::add(const Merge& merge) {
  Merge& slot = slots_[slot_of(merge.left, merge.right)];
  if (slot.left < 0) ++count_;
  slot = merge;
}

const MergeTable::Merge* MergeTable::find(int32_t left, int32_t right) const {
  const Merge& slot = slots_[slot_of(left, right)];
  return slot.left < 0 ? nullptr : &slot;
}

Bpe::Memory::Memory(size_t text_size) {
  if (text_size > 4096) known_.resize(kKnownWords);
}

Bpe::Bpe(Vocabulary pieces, MergeTable merges, BpeOptions options)
    : pieces_(std::move(pieces)), merges_(std::move(merges)), options_(std::move(options)) {
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    byte_ids_[b] = options_.bytes ? pieces_.find({&byte, 1}) : -1;
    fallback_ids_[b] = options_.byte_fallback ? pieces_.find(fmt::format("<0x{:02X}>", b)) : -1;
  }
}

int32_t Bpe::find(std::string_view piece, const Barred* barred) const {
  const int32_t id = pieces_.find(piece);
  return id >= 0 && barred && (*barred)[static_cast<size_t>(id)] ? -1 : id;
}

// Adds the symbols of a word before any merge. As in `tokenizers`, an unknown character that waits
// to be fused still waits while byte fallback handles the following character.
void Bpe::add_symbols(std::string_view word, const Barred* barred, Memory& memory) const {
  const auto add = [&](int32_t id) { memory.symbols_.push_back({id, -1, -1}); };
  const bool plain =
      options_.bytes && options_.prefix.empty() && options_.suffix.empty() && !barred;
  bool unknown = false;
  std::string changed;
  for (size_t at = 0, end; at < word.size(); at = end) {
    end = at + (options_.bytes ? 1 : utf8_at(word, at).length);
    std::string_view piece = word.substr(at, end - at);
    int32_t id;
    if (plain) {
      id = byte_ids_[static_cast<unsigned char>(piece[0])];
    } else {
      if ((at > 0 && !options_.prefix.empty()) ||
          (end == word.size() && !options_.suffix.empty())) {
        changed = at > 0 ? options_.prefix : "";
        changed += piece;
        if (end == word.size()) changed += options_.suffix;
        piece = changed;
      }
      id = find(piece, barred);
    }
    if (id >= 0) {
      if (unknown) add(options_.unk);
      unknown = false;
      add(id);
      continue;
    }
    const auto fallback = [&](char c) { return fallback_ids_[static_cast<unsigned char>(c)]; };
    if (options_.byte_fallback &&
        std::all_of(piece.begin(), piece.end(), [&](char c) { return fallback(c) >= 0; })) {
      for (const char c : piece) add(fallback(c));
      continue;
    }
    if (options_.unk < 0) continue;  // there is no unknown token
    if (unknown && !options_.fuse_unk) add(options_.unk);
    unknown = true;
  }
  if (unknown) add(options_.unk);
}

// Merges pairs with a heap of candidates over a linked list of symbols, in O(n log n).
void Bpe::merge(const Barred* barred, Memory& memory) const {
  std::vector<Memory::Symbol>& symbols = memory.symbols_;
  std::vector<Memory::Candidate>& heap = memory.heap_;
  const auto find_merge = [&](int32_t left, int32_t right) {
    const MergeTable::Merge* m =
        merges_.find(symbols[static_cast<size_t>(left)].id, symbols[static_cast<size_t>(right)].id);
    return m && barred && (*barred)[static_cast<size_t>(m->result)] ? nullptr : m;
  };
  const auto candidate = [](const MergeTable::Merge& m, int32_t place) {
    return Memory::Candidate{
        uint64_t{static_cast<uint32_t>(m.rank)} << 32 | static_cast<uint32_t>(place), m.result};
  };
  const auto count = static_cast<int32_t>(symbols.size());
  heap.clear();
  for (int32_t i = 0; i < count; ++i) {
    symbols[static_cast<size_t>(i)].previous = i - 1;
    symbols[static_cast<size_t>(i)].next = i + 1 < count ? i + 1 : -1;
    if (i + 1 == count) break;
    if (const MergeTable::Merge* m = find_merge(i, i + 1)) heap.push_back(candidate(*m, i));
  }
  std::make_heap(heap.begin(), heap.end());
  while (!heap.empty()) {
    const Memory::Candidate top = heap.front();
    std::pop_heap(heap.begin(), heap.end());
    heap.pop_back();
    const auto place = static_cast<int32_t>(top.order & UINT32_MAX);
    Memory::Symbol& left = symbols[static_cast<size_t>(place)];
    if (left.id < 0 || left.next < 0) continue;
    // The neighbours may have changed. The pair is still valid if it gives the same piece.
    const MergeTable::Merge* m = find_merge(place, left.next);
    if (!m || m->result != top.result) continue;
    Memory::Symbol& right = symbols[static_cast<size_t>(left.next)];
    left.id = top.result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) {
      symbols[static_cast<size_t>(left.next)].previous = place;
      if (const MergeTable::Merge* after = find_merge(place, left.next)) {
        heap.push_back(candidate(*after, place));
        std::push_heap(heap.begin(), heap.end());
      }
    }
    if (left.previous >= 0) {
      if (const MergeTable::Merge* before = find_merge(left.previous, place)) {
        heap.push_back(candidate(*before, left.previous));
        std::push_heap(heap.begin(), heap.end());
      }
    }
  }
}

void Bpe::compute(std::string_view word, const Barred* barred, Memory& memory,
                  std::vector<int32_t>& out) const {
  if (options_.ignore_merges) {
    if (const int32_t id = find(word, barred); id >= 0) {
      out.push_back(id);
      return;
    }
  }
  if (word.size() > INT32_MAX) {
    throw Error(ErrorKind::capacity, "", "text", "a word of at most 2147483647 bytes",
                fmt::format("{}", word.size()));
  }
  memory.symbols_.clear();
  add_symbols(word, barred, memory);
  merge(barred, memory);
  for (const Memory::Symbol& symbol : memory.symbols_) {
    if (symbol.id >= 0) out.push_back(symbol.id);
  }
}

void Bpe::encode(std::string_view word, const Barred* barred, Memory& memory,
                 std::vector<int32_t>& out) const {
  if (memory.known_.empty() || word.size() > kLongestKnown)
    return compute(word, barred, memory, out);
  Memory::Known& known = memory.known_[xxh3_64(word.data(), word.size()) & (kKnownWords - 1)];
  if (known.word == word) {
    for (size_t i = 0; i < known.count; ++i) out.push_back(out[known.begin + i]);
    return;
  }
  const size_t begin = out.size();
  compute(word, barred, memory, out);
  known = {word, begin, out.size() - begin};
}

}  // namespace stet
