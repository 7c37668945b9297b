// How a session lets windows go, and computes them again.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "stet/base/error.hpp"
#include "stet/kv/kv_writer.hpp"

namespace stet {

inline void Session::use_window(const WindowOptions& options) {
  before_recall_ = options.before_recall;
  if (options.only) window_ = plan_window(model_->config(), compute_.contract, options);
  state_.whole_kv = nullptr;
  if (window_ == nullptr && let_go(0, size()).empty()) return;
  const auto whole = [model = model_, compute = compute_, options](const State& state) {
    Session session(model, state, {state.kv.capacity(), state.kv.shape().type, compute, options});
    session.recall(session.let_go(0, session.size()));
    return std::move(session.state_.kv);
  };
  state_.whole_kv = std::make_shared<const std::function<KvCache(const State&)>>(whole);
}

// After tokens have been committed. What an append that may yet be undone needs stays: it began
// with `before` positions (-1: it is through). A state that its tokens do not give keeps all.
inline void Session::let_windows_go(int64_t before) {
  if (window_ == nullptr || !state_.edits.empty() || !is_replayable(state_.origin.contract)) return;
  const int64_t end = window_->first_whole(size());
  const int64_t kept_from = before < 0 ? end : window_->first_whole(before),
                kept_to = before < 0 ? end : blocks_of(before);
  for (int64_t b = let_go_to_; b < end; ++b) {
    if ((b >= kept_from && b < kept_to) || window_->of_checkpoint(b)) continue;
    KvWriter(state_.kv).drop(b, window_->held);
  }
  if (before < 0) let_go_to_ = std::max(let_go_to_, end);
}

// Blocks of positions begin .. end-1 that lack layers.
inline std::vector<int64_t> Session::let_go(int64_t begin, int64_t end) const {
  std::vector<int64_t> found;
  for (int64_t b = std::max<int64_t>(0, begin) / kBlockPositions; b < blocks_of(end); ++b) {
    if (!state_.kv.block_info(b).holds_all()) found.push_back(b);
  }
  return found;
}

// The first block that tokens do not give.
inline int64_t Session::first_edited_block() const {
  if (state_.edits.empty()) return state_.kv.blocks();
  const std::vector<bool> given = replayable_blocks(state_);
  return std::find(given.begin(), given.end(), false) - given.begin();
}

// The last position not behind a block's first one, and at a block's, before which a window is
// whole and nothing was edited.
inline int64_t Session::resume_point(int64_t block, int64_t first_edited) const {
  const int64_t window = detail::widest_window(model_->config());
  int64_t whole = 0, at = 0;  // the blocks before `b` from `whole` on lack nothing
  for (int64_t b = 0; b <= std::min(block, first_edited); ++b) {
    if (whole == 0 || (b - whole) * kBlockPositions >= window) at = b;
    if (!state_.kv.block_info(b).holds_all()) whole = b + 1;
  }
  return at * kBlockPositions;
}

// What is computed in one go for blocks in ascending order: one goes on where the next could not
// begin behind it.
inline std::vector<Session::HealRun> Session::heal_runs(const std::vector<int64_t>& blocks) const {
  std::vector<HealRun> runs;
  const int64_t first_edited = first_edited_block();
  for (const int64_t b : blocks) {
    const int64_t begin = resume_point(b, first_edited),
                  end = std::min(size(), (b + 1) * kBlockPositions);
    if (runs.empty() || begin > runs.back().end) runs.push_back({begin, end, {}});
    runs.back().end = end;
    runs.back().blocks.push_back(b);
  }
  return runs;
}

// Tokens that heal() processes again.
inline int64_t Session::heal_cost(const std::vector<int64_t>& blocks) const {
  int64_t cost = 0;
  for (const HealRun& run : heal_runs(blocks)) {
    if (run.begin < state_.floor()) return cost + transcript_size();
    cost += run.end - run.begin;
  }
  return cost;
}

inline void Session::recall(const std::vector<int64_t>& blocks) {
  if (!blocks.empty()) heal(blocks);
}

inline int64_t Session::rewind_cost(int64_t to) const {
  if (to < 0 || to > size()) return 0;
  return heal_cost(let_go(to - detail::widest_window(model_->config()), to));
}

// What prune_range() changes or moves of blocks, and what the next token sees of those before the
// gap.
inline std::vector<int64_t> Session::needed_by_prune(int64_t begin, int64_t end, bool shift) const {
  if (begin < 0 || begin >= end || end > size()) return {};
  if (!shift) {
    std::vector<int64_t> found;
    for (const int64_t b : let_go(begin, end)) {
      if (b * kBlockPositions < begin || (b + 1) * kBlockPositions > end) found.push_back(b);
    }
    return found;
  }
  const int64_t left = size() - (end - begin);
  std::vector<int64_t> found =
      let_go(std::min(begin, left - detail::widest_window(model_->config())), begin);
  for (const int64_t b : let_go(end, size())) {
    if (found.empty() || found.back() < b) found.push_back(b);
  }
  return found;
}

inline int64_t Session::prune_cost(int64_t begin, int64_t end, bool shift) const {
  return heal_cost(needed_by_prune(begin, end, shift));
}

inline void Session::begin_prune(int64_t begin, int64_t end, bool shift) {
  recall(needed_by_prune(begin, end, shift));
  let_go_to_ = 0;
}

}  // namespace stet
