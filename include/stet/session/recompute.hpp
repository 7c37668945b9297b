// Recomputes parts of a session's own keys and values. Healing restores blocks that a mapped file
// has lost; recall restores layers that were dropped outside a window.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stet/session/compute.hpp"
#include "stet/session/state.hpp"
#include "stet/session/window.hpp"

namespace stet {

class Session;

// Blocks that a session has recomputed: of one file, because they were damaged there, or, with an
// empty `file`, because their layers had been dropped.
struct HealedBlocks {
  std::string file;
  std::vector<int64_t> blocks;
  int64_t tokens = 0;  // tokens processed for it

  // Returns, for example, "s.stet: KV blocks 0, 3 were not what was saved: computed again from 128
  // tokens".
  std::string text() const;
};

// Recomputes the layers that blocks of a state lack: it knows these blocks and the tokens that
// reproduce each, and processes these tokens. The caller owns the state; every call must pass the
// same one. Recomputed blocks must match the digests that were kept. If they do not, or if anything
// else throws, the state is unchanged.
class Recomputer {
 public:
  // A state and the options to compute it with.
  struct Target {
    State& state;
    const ComputeOptions& compute;
  };

  Recomputer() = default;
  // Throws what plan_window() throws.
  Recomputer(std::shared_ptr<const Model> model, Contract contract, const WindowOptions& options);
  // Returns the object for a copy of the state, without its list of healed blocks.
  Recomputer fork() const;

  // Checks blocks and recomputes damaged ones, and `lacking`, if it does not hold all layers.
  // Throws a format Error if a block cannot be recomputed: it was edited, computed after an edit
  // (replayable_blocks), or computed by BLAS.
  void mend(Target target, KvCache::Look look, int64_t lacking = -1);
  // Calls `reads`, which reads blocks and must change nothing if it throws, until it meets no
  // damaged block.
  template <class Reads>
  void with_healing(Target target, Reads reads);
  // Recomputes the dropped layers of positions begin .. end-1.
  void recall(Target target, int64_t begin, int64_t end);
  // Recomputes these blocks, given in ascending order.
  void heal(Target target, const std::vector<int64_t>& damaged);
  // Returns the blocks recomputed since the last call.
  std::vector<HealedBlocks> take_healed() { return std::exchange(healed_, {}); }

  bool keeps_windows_only() const { return window_ != nullptr; }
  // Returns options that give another session the same windows and permission.
  WindowOptions options() const;
  // From now on, keeps all layers that a query at `size` sees.
  void keep_window_of(int64_t size);
  // Drops layers outside all windows, after tokens have been committed. Keeps what is needed to
  // undo an append in progress that began with `before` positions (-1: none is in progress). Drops
  // nothing from a state that its tokens do not determine.
  void drop_windows(State& state, int64_t before);
  // Makes drop_windows() consider all blocks again. Call it after blocks were changed or restored.
  void blocks_changed() { dropped_to_ = 0; }
  // Return the number of tokens that before_rewind() and before_prune() would process.
  int64_t rewind_cost(const State& state, int64_t size) const;
  int64_t prune_cost(const State& state, int64_t begin, int64_t end, bool shift) const;
  // Recompute the dropped layers that a query at `size` sees, or that a prune changes, moves, or
  // leaves visible.
  void before_rewind(Target target, int64_t size);
  void before_prune(Target target, int64_t begin, int64_t end, bool shift);
  // Replaces WindowOptions::before_recall; null: none.
  void set_before_recall(std::function<void(int64_t)> callback) {
    before_recall_ = std::move(callback);
  }
  // Returns true if all keys and values that a query at `size` sees are held.
  bool holds_window(const State& state, int64_t size) const {
    return needed_by_rewind(state, size).empty();
  }
  // Calls before_recall. Without one, throws an argument Error with the number of tokens.
  void announce(int64_t tokens, int64_t dropped = -1) const;
  void tell(int64_t tokens) const {
    if (before_recall_ != nullptr) before_recall_(tokens);
  }
  // Sets State::whole_kv, by which the state can recompute dropped layers.
  void set_whole_kv(Target target) const;

  // Called after each layer of each pass; may be null.
  const std::function<void()>* after_layer = nullptr;

 private:
  // A run: processing tokens begin .. end-1 yields `blocks`.
  struct Run {
    int64_t begin, end;
    std::vector<int64_t> blocks;
  };
  int64_t widest_window() const { return detail::widest_window(model_->config()); }
  std::vector<Run> runs(const State& state, const std::vector<int64_t>& blocks) const;
  int64_t resume_point(const State& state, int64_t block, int64_t first_edited) const;
  bool needed_by_anchor(const State& state, int64_t block) const;
  int64_t cost(const State& state, const std::vector<int64_t>& blocks) const;
  std::vector<int64_t> needed_by_rewind(const State& state, int64_t size) const;
  std::vector<int64_t> needed_by_prune(const State& state, int64_t begin, int64_t end,
                                       bool shift) const;
  void heal_runs(Target target, const std::vector<int64_t>& damaged);
  void announce_or_refuse(const State& state, const std::vector<int64_t>& damaged) const;
  Session front(Target target, int64_t size, int64_t wanted) const;
  void take_blocks(State& state, const Session& from, std::span<const int64_t> damaged,
                   int64_t tokens);

  std::shared_ptr<const Model> model_;
  std::shared_ptr<const WindowPlan> window_;  // null: nothing is dropped
  std::function<void(int64_t)> before_recall_;
  int64_t dropped_to_ = 0;  // all that can be dropped before this block has been dropped
  std::vector<HealedBlocks> healed_;
};

}  // namespace stet
