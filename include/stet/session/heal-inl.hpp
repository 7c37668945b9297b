// How a session computes again what a mapped file has lost.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "stet/base/error.hpp"
#include "stet/kv/kv_writer.hpp"

namespace stet {

// Runs what reads blocks, and changes nothing when it throws, until none of them was damaged.
template <class Reads>
void Session::with_mending(Reads reads) {
  for (int tries = 0;; ++tries) {
    try {
      return reads();
    } catch (const DamagedBlock&) {
      if (tries == detail::kMostMends) throw;
    }
    mend(KvCache::Look::at_all);
  }
}

inline std::string HealedBlocks::text() const {
  std::string list;
  for (const int64_t b : blocks) list += (list.empty() ? "" : ", ") + std::to_string(b);
  return file + (blocks.size() == 1 ? ": KV block " : ": KV blocks ") + list +
         (blocks.size() == 1 ? " was" : " were") + " not what was saved: computed again from " +
         std::to_string(tokens) + " tokens";
}

inline void Session::mend(KvCache::Look look) {
  const int threads = compute_.threads > 0 ? compute_.threads : default_threads();
  const std::vector<int64_t> damaged = state_.kv.find_damage(look, threads);
  if (!damaged.empty()) heal(damaged);
}

// Run by run, so that each is computed over whole blocks. Where a prune came later than a block,
// what its tokens saw is gone, and everything is computed again.
inline void Session::heal(const std::vector<int64_t>& damaged) {
  if (!state_.edits.empty()) {
    throw Error(
        ErrorKind::format, state_.kv.block_info(damaged[0]).saved()->file,
        "KV block " + std::to_string(damaged[0]),
        "the bytes that were saved (keys or values were edited: they cannot be computed again)",
        "others");
  }
  if (damaged[0] * kBlockPositions < state_.floor()) {
    Session again = replay(model_, state_, {capacity(), state_.kv.shape().type, compute_});
    return take_blocks(again, damaged, again.transcript_size());
  }
  for (size_t i = 0, next = 0; i < damaged.size(); i = next) {
    for (next = i + 1; next < damaged.size() && damaged[next] == damaged[next - 1] + 1;) ++next;
    const int64_t begin = damaged[i] * kBlockPositions,
                  end = std::min(size(), (damaged[next - 1] + 1) * kBlockPositions);
    Session again = front(begin);
    again.append(std::span(state_.tokens)
                     .subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
    take_blocks(again, std::span(damaged).subspan(i, next - i), end - begin);
  }
}

// Blocks of another session take the place of damaged ones, once all of them have proved to be what
// was saved.
inline void Session::take_blocks(Session& from, std::span<const int64_t> damaged, int64_t tokens) {
  for (const int64_t b : damaged) {
    const KvBlock& lost = state_.kv.block_info(b);
    if (lost.saved_as(state_.kv.shape(), from.state_.kv.block(b))) continue;
    throw Error(ErrorKind::format, lost.saved()->file, "KV block " + std::to_string(b),
                "a block that its tokens give", "another, after it was computed again");
  }
  for (const int64_t b : damaged) {
    const std::string file = state_.kv.block_info(b).saved()->file;
    if (healed_.empty() || healed_.back().file != file) healed_.push_back({file, {}, 0});
    healed_.back().blocks.push_back(b);
    KvWriter(state_.kv).replace(b, KvWriter(from.state_.kv).share(b));
  }
  healed_.back().tokens += tokens;
}

// A session of the tokens before `size`, a multiple of 64, that shares this one's blocks.
inline Session Session::front(int64_t size) {
  State state;
  state.origin = state_.origin;
  state.tokens.assign(state_.tokens.begin(), state_.tokens.begin() + size);
  std::vector<std::shared_ptr<KvBlock>> blocks;
  std::vector<uint64_t> visible;
  for (int64_t b = 0; b < size / kBlockPositions; ++b) {
    blocks.push_back(KvWriter(state_.kv).share(b));
    visible.push_back(state_.kv.visible(b));
  }
  for (Intervention w : state_.interventions) {  // of this state without its prunes
    const Reach reach = reach_of(state_, w);
    if (reach.end == 0) continue;
    if (reach.from < w.begin) w.begin = 0;
    w.at = reach.from, w.prunes = 0;
    state.interventions.push_back(std::move(w));
  }
  state.kv = KvCache(state_.kv.shape(), capacity());
  KvWriter(state.kv).adopt(std::move(blocks), std::move(visible), size);
  return Session(model_, std::move(state), {capacity(), state_.kv.shape().type, compute_});
}

}  // namespace stet
