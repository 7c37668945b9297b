// Implements Recomputer (recompute.hpp): temporary sessions process the tokens of the lost blocks.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stet/base/error.hpp"
#include "stet/kv/kv_writer.hpp"

namespace stet {

namespace detail {

// Returns the blocks of positions begin .. end-1 that lack layers.
STET_INL std::vector<int64_t> partial_blocks(const State& state, int64_t begin, int64_t end) {
  std::vector<int64_t> found;
  for (int64_t b = std::max<int64_t>(0, begin) / kBlockPositions; b < blocks_of(end); ++b) {
    if (!state.kv.block_info(b).holds_all()) found.push_back(b);
  }
  return found;
}

// Returns the first block that tokens do not determine.
STET_INL int64_t first_edited_block(const State& state) {
  if (state.edits.empty()) return state.kv.blocks();
  const std::vector<bool> given = replayable_blocks(state);
  return std::find(given.begin(), given.end(), false) - given.begin();
}

// Throws a format Error if tokens do not determine one of the blocks.
STET_INL void refuse_edited(const State& state, const std::vector<int64_t>& damaged) {
  if (state.edits.empty()) return;
  const std::vector<bool> given = replayable_blocks(state);
  for (const int64_t b : damaged) {
    if (given[static_cast<size_t>(b)]) continue;
    throw Error(
        ErrorKind::format, state.kv.block_info(b).saved()->file, "KV block " + std::to_string(b),
        "the bytes that were saved (keys or values were edited: they cannot be computed again)",
        "others");
  }
}

// Returns the state without keys, values and edits, as replay() needs it.
STET_INL State recipe_of(const State& state) {
  State recipe;
  recipe.origin = state.origin;
  recipe.tokens = state.tokens;
  recipe.generation = state.generation;
  recipe.prunes = state.prunes;
  recipe.interventions = state.interventions;
  recipe.chat = state.chat;
  return recipe;
}

}  // namespace detail

STET_INL std::string HealedBlocks::text() const {
  if (file.empty())
    return std::to_string(tokens) + " tokens processed again, whose windows were not kept";
  std::string list;
  for (const int64_t b : blocks) list += (list.empty() ? "" : ", ") + std::to_string(b);
  return file + (blocks.size() == 1 ? ": KV block " : ": KV blocks ") + list +
         (blocks.size() == 1 ? " was" : " were") + " not what was saved: computed again from " +
         std::to_string(tokens) + " tokens";
}

STET_INL Recomputer::Recomputer(std::shared_ptr<const Model> model, Contract contract,
                                const WindowOptions& options)
    : model_(std::move(model)), before_recall_(options.before_recall) {
  if (options.only) window_ = plan_window(model_->config(), contract, options);
}

STET_INL WindowOptions Recomputer::options() const {
  WindowOptions o;
  o.before_recall = before_recall_;
  if (window_ == nullptr) return o;
  o.only = true;
  o.checkpoint_every = window_->every;
  o.keep_from = window_->keep_from;
  return o;
}

STET_INL void Recomputer::keep_window_of(int64_t size) {
  if (window_ == nullptr) return;
  WindowPlan plan = *window_;
  plan.keep_from = plan.first_whole(size);
  window_ = std::make_shared<const WindowPlan>(std::move(plan));
}

STET_INL Recomputer Recomputer::fork() const {
  Recomputer copy = *this;
  copy.healed_.clear();
  copy.after_layer = nullptr;
  return copy;
}

// ------------------------------------------------------------------ healing

template <class Reads>
void Recomputer::with_healing(Target target, Reads reads) {
  for (int tries = 0;; ++tries) {
    int64_t lacking = -1;
    try {
      return reads();
    } catch (const DamagedBlock& e) {
      if (tries == detail::kMaxRestarts) throw;
      lacking = e.lacking;
    }
    mend(target, KvCache::Look::all_blocks, lacking);
  }
}

STET_INL void Recomputer::mend(Target target, KvCache::Look look, int64_t lacking) {
  const KvCache& kv = target.state.kv;
  std::vector<int64_t> damaged =
      target.state.kv.find_damage(look, detail::threads_of(target.compute));
  // The block may also be another state's, from which this one reads.
  if (lacking >= 0 && lacking < kv.blocks() && !kv.block_info(lacking).holds_all() &&
      std::ranges::count(damaged, lacking) == 0)
    damaged.insert(std::ranges::upper_bound(damaged, lacking), lacking);
  if (!damaged.empty()) heal(target, damaged);
}

STET_INL void Recomputer::recall(Target target, int64_t begin, int64_t end) {
  const std::vector<int64_t> dropped = detail::partial_blocks(target.state, begin, end);
  if (!dropped.empty()) heal(target, dropped);
}

// A failed request must not be remembered: other calls, and forks that share the block, would be
// refused for it.
STET_INL void Recomputer::heal(Target target, const std::vector<int64_t>& damaged) {
  try {
    heal_runs(target, damaged);
  } catch (...) {
    for (const int64_t b : damaged)
      target.state.kv.block_info(b).reset_missing_layers(target.state.kv.shape());
    throw;
  }
}

// Recomputes run by run. Each run covers whole blocks and begins where the window before it is
// held. If a prune came later than that, keys that its tokens saw no longer exist, and everything
// is recomputed. Edits are not reproduced in either case.
STET_INL void Recomputer::heal_runs(Target target, const std::vector<int64_t>& damaged) {
  State& state = target.state;
  detail::refuse_edited(state, damaged);
  announce_or_refuse(state, damaged);
  const Appender process = [this](Session& session, std::span<const int32_t> ids) {
    if (ids.empty()) return;
    const BatchEntry alone{&session, ids};
    BatchAppend({&alone, 1}, {nullptr, nullptr, after_layer}).run();
  };
  size_t taken = 0;
  for (const Run& run : runs(state, damaged)) {
    if (run.begin < state.floor()) {
      const Session again =
          replay(model_, detail::recipe_of(state),
                 {state.kv.capacity(), state.kv.shape().type, target.compute}, nullptr, process);
      return take_blocks(state, again, std::span(damaged).subspan(taken), again.transcript_size());
    }
    Session again = front(target, run.begin, run.blocks[0]);
    process(again,
            std::span(state.tokens)
                .subspan(static_cast<size_t>(run.begin), static_cast<size_t>(run.end - run.begin)));
    take_blocks(state, again, run.blocks, run.end - run.begin);
    taken += run.blocks.size();
  }
}

// Calls before_recall, or throws without one, before dropped layers are recomputed.
STET_INL void Recomputer::announce_or_refuse(const State& state,
                                             const std::vector<int64_t>& damaged) const {
  const bool recalled =
      std::ranges::any_of(damaged, [&](int64_t b) { return !state.kv.block_info(b).holds_all(); });
  if (recalled) announce(cost(state, damaged), damaged[0]);
}

STET_INL void Recomputer::announce(int64_t tokens, int64_t dropped) const {
  if (before_recall_ == nullptr) {
    throw Error(
        ErrorKind::argument, "", "window-only",
        "positions whose windows are held, or permission to process " + std::to_string(tokens) +
            " tokens again",
        dropped < 0 ? "others" : "block " + std::to_string(dropped) + ", which was dropped");
  }
  before_recall_(tokens);
}

// Replaces damaged blocks by those of another session, after all of them have proved equal to the
// saved ones.
STET_INL void Recomputer::take_blocks(State& state, const Session& from,
                                      std::span<const int64_t> damaged, int64_t tokens) {
  blocks_changed();
  const KvShape& shape = state.kv.shape();
  for (const int64_t b : damaged) {
    const KvBlock& lost = state.kv.block_info(b);
    if (lost.saved_as(shape, from.kv().block(b))) continue;
    throw Error(ErrorKind::format, lost.saved()->file, "KV block " + std::to_string(b),
                "the saved block, when it is computed again from its tokens", "a different one");
  }
  KvCache computed = from.kv();
  for (const int64_t b : damaged) {
    const KvBlock& lost = state.kv.block_info(b);
    const std::string file = lost.holds_all() ? lost.saved()->file : "";
    if (healed_.empty() || healed_.back().file != file) healed_.push_back({file, {}, 0});
    healed_.back().blocks.push_back(b);
    lost.reset_missing_layers(shape);
    KvWriter(state.kv).replace(b, KvWriter(computed).share(b));
  }
  healed_.back().tokens += tokens;
}

// Returns a session over the first `size` tokens (a multiple of 64, or an anchor's position) that
// shares the state's blocks. In a window-only state, it drops windows only before the block
// `wanted`.
STET_INL Session Recomputer::front(Target target, int64_t size, int64_t wanted) const {
  State& whole = target.state;
  State state;
  state.origin = whole.origin;
  state.tokens.assign(whole.tokens.begin(), whole.tokens.begin() + size);
  std::vector<std::shared_ptr<KvBlock>> blocks;
  std::vector<uint64_t> visible;
  for (int64_t b = 0; b < blocks_of(size); ++b) {
    blocks.push_back(KvWriter(whole.kv).share(b));
    visible.push_back(whole.kv.visible(b));
  }
  for (Intervention w : whole.interventions) {  // rewritten for this state, which has no prunes
    const Reach reach = reach_of(whole, w);
    if (reach.end == 0) continue;
    if (reach.from < w.begin) w.begin = 0;
    w.at = reach.from, w.prunes = 0;
    w.end = reach.end, w.ended = -1;
    state.interventions.push_back(std::move(w));
  }
  state.kv = KvCache(whole.kv.shape(), whole.kv.capacity(), keeps_windows_only());
  const int64_t held = std::min(whole.size(), blocks_of(size) * kBlockPositions);
  KvWriter(state.kv).adopt(std::move(blocks), std::move(visible), held);
  KvWriter(state.kv).truncate(size);
  state.recurrent = whole.recurrent;
  const Anchor* const anchor = whole.anchors.find(size);
  state.recurrent.set(anchor != nullptr ? anchor->arrays : nullptr);
  SessionOptions options{whole.kv.capacity(), whole.kv.shape().type, target.compute};
  if (keeps_windows_only()) options.window = {true, window_->every, nullptr, wanted};
  return Session(model_, std::move(state), options);
}

// ----------------------------------------------------- tokens to process

// Returns the latest block boundary at or before `block` whose preceding window is held and before
// which nothing was edited. In models with recurrent layers, returns an anchor's position.
STET_INL int64_t Recomputer::resume_point(const State& state, int64_t block,
                                          int64_t first_edited) const {
  if (!state.recurrent.empty()) {
    const Anchors::All& all = state.anchors.all();
    for (size_t i = all.size(); i-- > 0;) {
      const int64_t at = all[i]->position;
      if (at <= std::min(block, first_edited) * kBlockPositions && holds_window(state, at) &&
          is_intact(*all[i]))
        return at;
    }
    return 0;
  }
  const int64_t window = widest_window();
  int64_t whole = 0, at = 0;  // blocks whole .. b-1 hold all layers
  for (int64_t b = 0; b <= std::min(block, first_edited); ++b) {
    if (whole == 0 || (b - whole) * kBlockPositions >= window) at = b;
    if (!state.kv.block_info(b).holds_all()) whole = b + 1;
  }
  return at * kBlockPositions;
}

// Groups blocks, in ascending order, into runs. A block joins the current run if its own
// recomputation would have to begin before the run's end.
STET_INL std::vector<Recomputer::Run> Recomputer::runs(const State& state,
                                                       const std::vector<int64_t>& blocks) const {
  std::vector<Run> all;
  const int64_t first_edited = detail::first_edited_block(state);
  for (const int64_t b : blocks) {
    const int64_t begin = resume_point(state, b, first_edited),
                  end = std::min(state.size(), (b + 1) * kBlockPositions);
    if (all.empty() || begin > all.back().end) all.push_back({begin, end, {}});
    all.back().end = end;
    all.back().blocks.push_back(b);
  }
  return all;
}

// Returns the number of tokens that heal() processes.
STET_INL int64_t Recomputer::cost(const State& state, const std::vector<int64_t>& blocks) const {
  int64_t tokens = 0;
  for (const Run& run : runs(state, blocks)) {
    if (run.begin < state.floor()) return tokens + state.transcript_size();
    tokens += run.end - run.begin;
  }
  return tokens;
}

// ------------------------------------------------------------------ windows

STET_INL void Recomputer::drop_windows(State& state, int64_t before) {
  if (window_ == nullptr || !state.edits.empty() || !is_replayable(state.origin.contract)) return;
  const int64_t end = window_->first_whole(state.size());
  const int64_t kept_from = before < 0 ? end : window_->first_whole(before),
                kept_to = before < 0 ? end : blocks_of(before);
  int64_t done = end;
  for (int64_t b = dropped_to_; b < end; ++b) {
    if ((b >= kept_from && b < kept_to) || window_->of_checkpoint(b)) continue;
    if (needed_by_anchor(state, b)) {
      done = std::min(done, b);  // once the anchor is dropped, the block can be
      continue;
    }
    KvWriter(state.kv).drop(b, window_->held);
  }
  if (before < 0) dropped_to_ = std::max(dropped_to_, done);
}

// Returns true if a query at an anchor sees the block.
STET_INL bool Recomputer::needed_by_anchor(const State& state, int64_t block) const {
  return std::ranges::any_of(state.anchors.all(), [&](const auto& a) {
    return block < blocks_of(a->position) &&
           (block + 1) * kBlockPositions > a->position - widest_window();
  });
}

STET_INL std::vector<int64_t> Recomputer::needed_by_rewind(const State& state, int64_t size) const {
  return detail::partial_blocks(state, size - widest_window(), size);
}

// Returns the blocks with missing layers that a prune needs: those that it changes or moves. A
// shift also needs those before the gap that are in the next token's window.
STET_INL std::vector<int64_t> Recomputer::needed_by_prune(const State& state, int64_t begin,
                                                          int64_t end, bool shift) const {
  if (begin < 0 || begin >= end || end > state.size()) return {};
  if (!shift) {
    std::vector<int64_t> found;
    for (const int64_t b : detail::partial_blocks(state, begin, end)) {
      if (b * kBlockPositions < begin || (b + 1) * kBlockPositions > end) found.push_back(b);
    }
    return found;
  }
  const int64_t left = state.size() - (end - begin);
  std::vector<int64_t> found =
      detail::partial_blocks(state, std::min(begin, left - widest_window()), begin);
  for (const int64_t b : detail::partial_blocks(state, end, state.size())) {
    if (found.empty() || found.back() < b) found.push_back(b);
  }
  return found;
}

STET_INL int64_t Recomputer::rewind_cost(const State& state, int64_t size) const {
  if (size < 0 || size > state.size()) return 0;
  return cost(state, needed_by_rewind(state, size));
}

STET_INL int64_t Recomputer::prune_cost(const State& state, int64_t begin, int64_t end,
                                        bool shift) const {
  return cost(state, needed_by_prune(state, begin, end, shift));
}

STET_INL void Recomputer::before_rewind(Target target, int64_t size) {
  const std::vector<int64_t> needed = needed_by_rewind(target.state, size);
  if (!needed.empty()) heal(target, needed);
}

STET_INL void Recomputer::before_prune(Target target, int64_t begin, int64_t end, bool shift) {
  const std::vector<int64_t> needed = needed_by_prune(target.state, begin, end, shift);
  if (!needed.empty()) heal(target, needed);
  blocks_changed();
}

STET_INL void Recomputer::set_whole_kv(Target target) const {
  target.state.whole_kv = nullptr;
  if (!keeps_windows_only() && detail::partial_blocks(target.state, 0, target.state.size()).empty())
    return;
  const auto whole = [mine = fork(), compute = target.compute](const State& state, int64_t begin,
                                                               int64_t end) {
    State copy = state;
    Recomputer again = mine;
    again.recall({copy, compute}, begin, end);
    return std::move(copy.kv);
  };
  target.state.whole_kv = std::make_shared<const State::WholeKv>(whole);
}

}  // namespace stet
