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
  if (file.empty())
    return std::to_string(tokens) + " tokens processed again, whose windows were not kept";
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

// Throws for blocks that tokens do not give.
inline void Session::refuse_edited(const std::vector<int64_t>& damaged) const {
  if (state_.edits.empty()) return;
  const std::vector<bool> given = replayable_blocks(state_);
  for (const int64_t b : damaged) {
    if (given[static_cast<size_t>(b)]) continue;
    throw Error(
        ErrorKind::format, state_.kv.block_info(b).saved()->file, "KV block " + std::to_string(b),
        "the bytes that were saved (keys or values were edited: they cannot be computed again)",
        "others");
  }
}

// Run by run, so that each is computed over whole blocks, from where a window is whole before it.
// Where a prune came later than that, what its tokens saw is gone, and everything is computed
// again. What was edited is no part of either.
inline void Session::heal(const std::vector<int64_t>& damaged) {
  const bool recalled =
      std::ranges::any_of(damaged, [&](int64_t b) { return !state_.kv.block_info(b).holds_all(); });
  refuse_edited(damaged);
  if (recalled) {
    const int64_t tokens = heal_cost(damaged);
    if (before_recall_ == nullptr) {
      throw Error(
          ErrorKind::argument, "", "window-only",
          "what its windows hold, or leave to process " + std::to_string(tokens) + " tokens again",
          "block " + std::to_string(damaged[0]) + ", which was let go");
    }
    before_recall_(tokens);
  }
  const Appender process = [this](Session& session, std::span<const int32_t> ids) {
    if (ids.empty()) return;
    const BatchEntry alone{&session, ids};
    BatchAppend({&alone, 1}, {nullptr, nullptr, after_layer_}).run();
  };
  size_t taken = 0;
  for (const HealRun& run : heal_runs(damaged)) {
    if (run.begin < state_.floor()) {
      Session again = replay(model_, recipe(), {capacity(), state_.kv.shape().type, compute_},
                             nullptr, process);
      return take_blocks(again, std::span(damaged).subspan(taken), again.transcript_size());
    }
    Session again = front(run.begin, run.blocks[0]);
    process(again,
            std::span(state_.tokens)
                .subspan(static_cast<size_t>(run.begin), static_cast<size_t>(run.end - run.begin)));
    take_blocks(again, run.blocks, run.end - run.begin);
    taken += run.blocks.size();
  }
}

// Blocks of another session take the place of damaged ones, once all of them have proved to be what
// was saved.
inline void Session::take_blocks(Session& from, std::span<const int64_t> damaged, int64_t tokens) {
  let_go_to_ = 0;
  for (const int64_t b : damaged) {
    const KvBlock& lost = state_.kv.block_info(b);
    if (lost.saved_as(state_.kv.shape(), from.state_.kv.block(b))) continue;
    throw Error(ErrorKind::format, lost.saved()->file, "KV block " + std::to_string(b),
                "a block that its tokens give", "another, after it was computed again");
  }
  for (const int64_t b : damaged) {
    const KvBlock& lost = state_.kv.block_info(b);
    const std::string file = lost.holds_all() ? lost.saved()->file : "";
    if (healed_.empty() || healed_.back().file != file) healed_.push_back({file, {}, 0});
    healed_.back().blocks.push_back(b);
    lost.forget_asked(state_.kv.shape());
    KvWriter(state_.kv).replace(b, KvWriter(from.state_.kv).share(b));
  }
  healed_.back().tokens += tokens;
}

// A session of the tokens before `size`, a multiple of 64, that shares this one's blocks. Of those
// before `wanted` it keeps windows alone, where this one does.
inline Session Session::front(int64_t size, int64_t wanted) {
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
    w.end = reach.end, w.ended = -1;
    state.interventions.push_back(std::move(w));
  }
  state.kv = KvCache(state_.kv.shape(), capacity(), window_ != nullptr);
  KvWriter(state.kv).adopt(std::move(blocks), std::move(visible), size);
  Session session(model_, std::move(state), {capacity(), state_.kv.shape().type, compute_});
  if (window_ != nullptr) {
    WindowPlan plan = *window_;
    plan.keep_from = wanted;
    session.window_ = std::make_shared<const WindowPlan>(std::move(plan));
  }
  return session;
}

}  // namespace stet
