// Anchors: recurrent arrays at earlier positions of a session, from which its state there and after
// can be computed again.
//
// Recurrent arrays are a function of all tokens before them, and too large to keep for every block.
// Anchors are kept where conversations branch: at the ends of messages and replies, and where forks
// and snapshots are made. Those at the last two block ends are kept until later block ends are
// reached.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "stet/base/error.hpp"
#include "stet/kv/kv_block.hpp"
#include "stet/kv/recurrent_state.hpp"

namespace stet {

// The recurrent arrays after `position` tokens.
struct Anchor {
  int64_t position = 0;
  RecurrentArrays arrays;  // may be in a mapped file until their first use
  // Logits of the last token before `position` or, if `hidden`, the row of hidden state from which
  // the head computes them. Null: unknown. Read with the arrays: call is_intact() first.
  std::shared_ptr<std::vector<float>> last = nullptr;
  bool hidden = false;      // `last` is a row of hidden state
  bool block_end = false;   // kept only until two later block ends are reached
  bool by_content = false;  // replaying tokens from 0 might give other arrays: no budget drops it
};

// Returns false if the arrays are in a file that no longer has the bytes that were saved. Reads them.
inline bool is_intact(const Anchor& anchor) {
  try {
    anchor.arrays->load();
    return true;
  } catch (const Error& e) {
    if (e.kind != ErrorKind::format) throw;
    return false;
  }
}

// The anchors of a session in ascending order of position. Copies share the arrays.
class Anchors {
 public:
  // Memory for anchors unless SessionOptions::anchor_bytes says otherwise.
  static constexpr int64_t kDefaultBytes = int64_t{1} << 30;
  static constexpr int64_t kBlockEnds = 2;  // block ends that are kept
  using All = std::vector<std::shared_ptr<const Anchor>>;

  const All& all() const { return all_; }
  bool empty() const { return all_.empty(); }
  size_t size() const { return all_.size(); }
  // Returns the anchor at `position`; null if there is none.
  const Anchor* find(int64_t position) const;
  void reserve(size_t more) { all_.reserve(all_.size() + more); }
  // Adds an anchor, or merges it with the one at its position.
  void add(Anchor anchor);
  // Marks all as by_content, since tokens do not give them any more, and keeps those of block ends
  // for good.
  void keep_by_content();
  // Removes the anchors after `size`.
  void truncate(int64_t size);
  // Removes anchors of block ends before the last two, also by_content ones: positions after an edit
  // can be computed again from the anchor it left. Under a callback or BLAS they cannot, so a
  // rewind to a removed anchor is refused. Then, while all take more than `most` bytes, removes the
  // oldest but the first. Each takes `bytes_each` bytes. The first and the last go only when no
  // others are left. The budget never removes anchors with by_content.
  // Cannot fail.
  void settle(int64_t most, size_t bytes_each);

 private:
  All::iterator place_of(int64_t position) {
    return std::ranges::lower_bound(all_, position, {}, [](const auto& a) { return a->position; });
  }

  All all_;
};

// Returns the position at which a pass over positions `at` .. `end`-1 must end for an anchor:
// `end`, one of the last two block ends, or one of the positions `wanted`.
inline int64_t next_anchor(int64_t at, int64_t end, std::span<const int64_t> wanted) {
  const int64_t last = end / kBlockPositions * kBlockPositions;
  int64_t next = end;
  for (int64_t i = 0; i < Anchors::kBlockEnds; ++i) {
    const int64_t block_end = last - i * kBlockPositions;
    if (block_end > at) next = std::min(next, block_end);
  }
  for (const int64_t w : wanted) {
    if (w > at) next = std::min(next, w);
  }
  return next;
}

inline const Anchor* Anchors::find(int64_t position) const {
  for (const auto& a : all_) {
    if (a->position == position) return a.get();
  }
  return nullptr;
}

inline void Anchors::add(Anchor anchor) {
  const auto at = place_of(anchor.position);
  if (at == all_.end() || (*at)->position != anchor.position) {
    all_.insert(at, std::make_shared<const Anchor>(std::move(anchor)));
    return;
  }
  const Anchor& old = **at;
  if (anchor.last == nullptr && old.last != nullptr && is_intact(old))
    anchor.last = old.last, anchor.hidden = old.hidden;
  anchor.block_end = anchor.block_end && old.block_end;
  anchor.by_content = anchor.by_content || old.by_content;
  *at = std::make_shared<const Anchor>(std::move(anchor));
}

inline void Anchors::keep_by_content() {
  for (auto& a : all_) {
    Anchor changed = *a;
    changed.by_content = true;
    changed.block_end = false;
    a = std::make_shared<const Anchor>(std::move(changed));
  }
}

inline void Anchors::truncate(int64_t size) {
  while (!all_.empty() && all_.back()->position > size) all_.pop_back();
}

inline void Anchors::settle(int64_t most, size_t bytes_each) {
  int64_t block_ends = 0;
  for (size_t i = all_.size(); i-- > 0;) {
    if (all_[i]->position % kBlockPositions != 0) continue;
    if (++block_ends > kBlockEnds && all_[i]->block_end)
      all_.erase(all_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  const auto droppable = [](const auto& a) { return !a->by_content; };
  while (!all_.empty() && static_cast<int64_t>(all_.size() * bytes_each) > most) {
    auto gone =
        all_.size() < 3 ? all_.end() : std::find_if(all_.begin() + 1, all_.end() - 1, droppable);
    if (all_.size() < 3 || gone == all_.end() - 1) gone = std::ranges::find_if(all_, droppable);
    if (gone == all_.end()) return;
    all_.erase(gone);
  }
}

}  // namespace stet
