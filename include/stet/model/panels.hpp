// Panels of packed weights, and the pieces of them that are multiplied at once.
#pragma once

#include "stet/model/pass.hpp"

namespace stet {

// The largest block of rows, which must stay in the second-level cache beside a panel of weights.
// It is a multiple of kTileRows and holds the default chunk of 512.
constexpr size_t kGemmRows = 516;
constexpr size_t kGemmDepth = 640;  // inputs of a panel that are widened at once

namespace detail {

constexpr size_t kPanelBlocks = kPanel / kLanes;

// Returns the depth of equal pieces of the inputs: a multiple of `unit`, at most `most`.
inline size_t piece_depth(size_t depth, size_t most, size_t unit) {
  const size_t pieces = (depth + most - 1) / most;
  return ((depth + unit - 1) / unit + pieces - 1) / pieces * unit;
}

inline size_t tiles_of(size_t rows) { return (rows + kTileRows - 1) / kTileRows; }

// A panel of packed weights.
struct Panel {
  const Matrix* w;
  size_t block, blocks;  // up to kPanelBlocks packed blocks of w, beginning with `block`
};
// Panels that are multiplied together: one, or the gate and up panels of a gated unit. Their
// matrices have the same type and depth.
struct Group {
  static constexpr size_t kMost = 2;
  Panel panels[kMost];
  size_t count = 0;
};

// Inputs k0 .. k0 + kc of a group of panels.
struct Piece {
  Piece(const Matrix& matrix, const Group& some, size_t first, size_t depth)
      : w(&matrix),
        group(&some),
        k0(first),
        kc(depth),
        offset(matrix.offset(first)),
        bytes(matrix.offset(first + depth) - offset) {}

  const Matrix* w;
  const Group* group;
  size_t k0, kc;
  size_t offset, bytes;  // in bytes: the piece's start in each block, and its length

  const Panel& panel(size_t i) const { return group->panels[i]; }
  const std::byte* weights(size_t i, size_t b = 0) const {
    return static_cast<const std::byte*>(panel(i).w->block(panel(i).block + b)) + offset;
  }
  // Returns part `part` of `parts` of the i-th panel as a prefetch range, empty if there is no such
  // panel.
  Fetch fetch(size_t i, size_t part, size_t parts) const {
    if (i >= group->count) return {};
    const size_t lines = bytes / kCacheLine, first = lines * part / parts;
    return {weights(i) + first * kCacheLine, (lines * (part + 1) / parts - first) * kCacheLine,
            w->block_bytes(), panel(i).blocks};
  }
};

// Widens the inputs k0 .. k0 + kc of a panel to float32, in the order of the chain.
inline void widen_panel(const Kernels& k, const Panel& panel, size_t k0, size_t kc, float* to) {
  const Matrix& w = *panel.w;
  const auto widen = w.type() == WeightType::mxfp4 ? k.widen_panel_mxfp4
                                                   : k.widen_panel[static_cast<int>(w.type())];
  widen(w.block(panel.block), panel.blocks, w.depth(), k0, kc, to);
}
// Returns a number of inputs: the first input k0 of widen() must be a multiple of it.
inline size_t widened_unit(const Matrix& w) {
  return w.type() == WeightType::mxfp4 ? size_t{kStripMxfp4} : 2;
}

}  // namespace detail
}  // namespace stet
