// What a session computes again of its own keys and values: blocks that a mapped file has lost
// (healing), and layers of a window that were dropped (recall).
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

// Blocks of one file that were no longer what was saved there, and that a session has computed
// again.
struct HealedBlocks {
  std::string file;
  std::vector<int64_t> blocks;
  int64_t tokens = 0;  // that were processed for it

  // "s.stet: KV blocks 0, 3 were not what was saved: computed again from 128 tokens"
  std::string text() const;
};

// Knows which blocks of a state are held without layers, which tokens give a block again, and
// processes these. The state is the caller's: every call is about the same one. What is computed
// again must prove to be what was there, by the digests that were kept; otherwise, and whatever
// else is thrown, the state is as it was.
class Recompute {
 public:
  // A state, and how it is computed.
  struct Target {
    State& state;
    const ComputeOptions& compute;
  };

  Recompute() = default;
  // Throws what plan_window() does.
  Recompute(std::shared_ptr<const Model> model, Contract contract, const WindowOptions& options);
  // The same for a copy of the state: it has healed nothing yet.
  Recompute fork() const;

  // Looks at blocks and computes those again that are not what was saved. Throws a format Error
  // where that is impossible: what the block holds was edited, or computed after an edit
  // (replayable_blocks), or comes from BLAS.
  void mend(Target target, KvCache::Look look);
  // Runs what reads blocks, and changes nothing when it throws, until none of them was damaged.
  template <class Reads>
  void with_mending(Target target, Reads reads);
  // Computes these blocks again, in ascending order.
  void heal(Target target, const std::vector<int64_t>& damaged);
  // What was computed again since the last call.
  std::vector<HealedBlocks> take_healed() { return std::exchange(healed_, {}); }

  bool keeps_windows_only() const { return window_ != nullptr; }
  // Drops what no window holds any more, once tokens have been committed. What an append that may
  // yet be undone needs stays: it began with `before` positions (-1: it is through). A state that
  // its tokens do not give keeps all.
  void drop_windows(State& state, int64_t before);
  // To be called where blocks were changed, or taken back: drop_windows() looks at all of them.
  void blocks_changed() { dropped_to_ = 0; }
  // Tokens that before_rewind() and before_prune() process.
  int64_t rewind_cost(const State& state, int64_t size) const;
  int64_t prune_cost(const State& state, int64_t begin, int64_t end, bool shift) const;
  // Computes again what a query at `size` sees, or what a prune changes, moves, and leaves to be
  // seen.
  void before_rewind(Target target, int64_t size);
  void before_prune(Target target, int64_t begin, int64_t end, bool shift);
  // WindowOptions::before_recall from here on; null: none.
  void set_before_recall(std::function<void(int64_t)> told) { before_recall_ = std::move(told); }
  void tell(int64_t tokens) const {
    if (before_recall_ != nullptr) before_recall_(tokens);
  }
  // Gives the state the means to compute what it lacks by itself (State::whole_kv).
  void offer_whole_kv(Target target) const;

  // Called after each layer of each pass; null: nothing is.
  const std::function<void()>* after_layer = nullptr;

 private:
  // Tokens begin .. end-1 are processed again to have `blocks`.
  struct Run {
    int64_t begin, end;
    std::vector<int64_t> blocks;
  };
  int64_t widest_window() const { return detail::widest_window(model_->config()); }
  std::vector<Run> runs(const State& state, const std::vector<int64_t>& blocks) const;
  int64_t resume_point(const State& state, int64_t block, int64_t first_edited) const;
  int64_t cost(const State& state, const std::vector<int64_t>& blocks) const;
  std::vector<int64_t> needed_by_rewind(const State& state, int64_t size) const;
  std::vector<int64_t> needed_by_prune(const State& state, int64_t begin, int64_t end,
                                       bool shift) const;
  void tell_or_refuse(const State& state, const std::vector<int64_t>& damaged) const;
  Session front(Target target, int64_t size, int64_t wanted) const;
  void take_blocks(State& state, const Session& from, std::span<const int64_t> damaged,
                   int64_t tokens);

  std::shared_ptr<const Model> model_;
  std::shared_ptr<const WindowPlan> window_;  // null: everything is kept
  std::function<void(int64_t)> before_recall_;
  int64_t dropped_to_ = 0;  // of the blocks before, all that can be
  std::vector<HealedBlocks> healed_;
};

}  // namespace stet
