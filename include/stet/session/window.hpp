// Window-only sessions, which drop keys and values outside the window of each sliding-window layer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "stet/base/error.hpp"
#include "stet/kv/kv_block.hpp"
#include "stet/model/config.hpp"
#include "stet/model/contract.hpp"

namespace stet {

// Options of window-only sessions. Blocks that the next token can see, and blocks that a checkpoint
// needs, hold all layers. Older blocks lack the layers that have a window. Computed bits,
// identities and digests do not depend on this: digests of dropped layers are kept.
//
// Rewinding or pruning into a dropped window processes tokens again from the checkpoint before it.
// The result is exact, and the digests prove it.
struct WindowOptions {
  bool only = false;
  // Distance of checkpoints in positions, before which windows are kept: 0 (none), or at least
  // twice the window plus 256.
  int64_t checkpoint_every = 8192;
  // Called with the number of tokens before they are processed again. If it throws, nothing has
  // changed. If null, an argument Error with that number is thrown instead.
  std::function<void(int64_t tokens)> before_recall = nullptr;
  int64_t keep_from = INT64_MAX;  // blocks from this one on hold all layers
};

// The window options applied to a model.
struct WindowPlan {
  std::shared_ptr<const HeldLayers> held;  // layers that old blocks hold
  int64_t window = 0;                      // the widest window
  int64_t every = 0;                       // positions between checkpoints; 0: none
  int64_t keep_from = INT64_MAX;           // blocks from this one on hold all layers
  // Positions held beyond a window, so that the last tokens can be rewound without recomputing.
  static constexpr int64_t kSpare = 64;

  // Returns the first block in which a session of `size` positions must hold all layers.
  int64_t first_whole(int64_t size) const {
    return std::min(keep_from, std::max<int64_t>(0, size - window - kSpare) / kBlockPositions);
  }
  // Returns true if a checkpoint, existing or future, needs all layers of the block.
  bool of_checkpoint(int64_t block) const {
    if (every == 0) return false;
    const int64_t next = (block * kBlockPositions / every + 1) * every;
    return first_whole(next) <= block;
  }
};

namespace detail {

inline int64_t widest_window(const ModelConfig& c) {
  return c.window.empty() ? 0 : *std::max_element(c.window.begin(), c.window.end());
}

// Returns the layers that old blocks hold: those whose keys and values a layer without a window
// reads. Layers without keys and values count as held.
HeldLayers held_layers(const ModelConfig& c);

}  // namespace detail

// Throws an unsupported Error for a model without windows, and for a contract whose bits cannot be
// reproduced. Throws an argument Error if checkpoints are so dense that nothing would be dropped.
std::shared_ptr<const WindowPlan> plan_window(const ModelConfig& c, Contract contract,
                                              const WindowOptions& options);

// Returns the bytes of blocks that a session of `positions` positions holds between two passes.
uint64_t window_only_bytes(const ModelConfig& c, const KvShape& shape, int64_t every,
                           int64_t positions);

}  // namespace stet

#ifndef STET_SEPARATE
#include "stet/session/window-inl.hpp"
#endif
