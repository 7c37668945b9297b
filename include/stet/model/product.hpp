// Products of weights with many rows of inputs, by the tile kernels. The work is divided so that a
// panel of weights, the rows beside it and the sums stay in the caches.
#pragma once

#include <algorithm>

#include "stet/api.h"
#include "stet/model/pass.hpp"
#include "stet/threads/team.hpp"

namespace stet {

// The function that joins gate and up, element by element: f(gate) up or, if clamped,
// clamped_silu_mul of Kernels with `limit`.
struct Gate {
  enum class Kind : uint8_t { silu, gelu_tanh, clamped };
  Kind kind = Kind::silu;
  float limit = 0;  // for the clamped gates

  static const Gate silu, gelu_tanh;
  static constexpr Gate clamped(float limit) { return {Kind::clamped, limit}; }
};
inline constexpr Gate Gate::silu = {Gate::Kind::silu, 0};
inline constexpr Gate Gate::gelu_tanh = {Gate::Kind::gelu_tanh, 0};

// The largest block of rows, which must stay in the second-level cache beside a panel of weights.
// It is a multiple of kTileRows and holds the default chunk of 512.
constexpr size_t kGemmRows = 516;
constexpr size_t kGemmDepth = 640;  // inputs of a panel that are widened at once

// Returns the function that joins n elements: f(gate, up, y, n).
inline auto gate_kernel(const Kernels& k, const Gate& by) {
  return [&k, by](const float* gate, const float* up, float* y, size_t n) {
    if (by.kind == Gate::Kind::clamped) return k.clamped_silu_mul(gate, up, by.limit, y, n);
    (by.kind == Gate::Kind::silu ? k.silu_mul : k.gelu_tanh_mul)(gate, up, y, n);
  };
}

// Computes y = W x for many rows.
void gemm(Team t, const Pass& p, const Matrix& w, Rows x, Rows y);
// Computes linear_gated() for a matrix whose half is a multiple of kLanes. Gates and ups are used
// while they are in the first-level cache and are not stored in gate_up.
void gemm_gated(Team t, const Pass& p, const Matrix& w, Gate gate, Rows x, Rows y);
// Returns the floats of local memory (Scratch) that each thread needs for products.
size_t gemm_local_floats();
// Computes y = W x with OpenBLAS, which must be loaded, on panels that it widens to float32.
STET_API void gemm_blas(Team t, const Pass& p, const Matrix& w, Rows x, Rows y);
// Loads OpenBLAS, once per process. Throws an unsupported Error with the loader's reason if it is
// not available. Any thread may call it.
STET_API void load_openblas();

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

// Destination of a tile's sums, rows `ld` apart.
struct TileOutput {
  float* at;
  size_t ld;
};

// Each of the following types is a destination of a product, computed in groups of kPanels panels.
// last_sums() returns where the i-th panel's final sums go, for the rows of a tile from `row` on.
// `tile` is scratch memory with room for the final sums of the whole group. finish() then turns the
// sums in `tile`, if there are any, into outputs.

// Computes y = W x.
struct Plain {
  static constexpr size_t kPanels = 1;
  const Matrix& w;
  Rows y;

  size_t outputs() const { return w.blocks(); }
  Group group(size_t block, size_t blocks) const { return {{{&w, block, blocks}}, kPanels}; }
  TileOutput last_sums(const Group& g, size_t i, size_t row, Rows) const {
    return {y.row(row) + g.panels[i].block * kLanes, y.stride};
  }
  void finish(const Kernels&, const Group&, size_t, Rows) const {}
};

// Computes y = f(gate) up: gates are the first half of the outputs, up the second half.
struct Gated {
  static constexpr size_t kPanels = 2;
  const Matrix& w;
  Rows y;
  Gate gate;

  size_t outputs() const { return w.blocks() / 2; }
  Group group(size_t block, size_t blocks) const {
    return {{{&w, block, blocks}, {&w, outputs() + block, blocks}}, kPanels};
  }
  TileOutput last_sums(const Group&, size_t i, size_t, Rows tile) const {
    return {tile.data + i * kPanel, tile.stride};
  }
  void finish(const Kernels& k, const Group& g, size_t row, Rows tile) const {
    for (size_t r = 0; r < tile.count; ++r) {
      const float* const sums = tile.row(r);
      gate_kernel(k, gate)(sums, sums + kPanel, y.row(row + r) + g.panels[0].block * kLanes,
                           g.panels[0].blocks * kLanes);
    }
  }
};

// Returns the number of parts that the rows of a product are divided into, so that all threads
// finish at about the same time. Without parts, 16 threads that share 18 groups of panels compute one
// each, and two threads then compute the rest while 14 wait. Each part prepares the weights again,
// which costs about 1/64 of a group (bench/shares.py).
constexpr size_t row_parts(size_t groups, size_t tiles, size_t threads) {
  constexpr size_t kMost = 8, kLeastTiles = 8, kOnce = 64;
  // The slowest thread is assumed to finish half a piece of work late. Costs are compared as
  // cost(parts) / parts; a gain of less than 1/25 is none.
  const auto cost = [&](size_t parts) {
    return (2 * ((groups * parts + threads - 1) / threads) + 1) * (kOnce + parts - 1);
  };
  size_t best = 1;
  for (size_t parts = 2; threads > 1 && parts <= kMost && parts * kLeastTiles <= tiles; ++parts) {
    if (cost(parts) * best < cost(best) * parts) best = parts;
  }
  return cost(best) * 25 < cost(1) * best * 24 ? best : 1;
}

// OpenBLAS multiplies this many packed blocks at once. Local memory holds them widened in input
// order, and one panel widened in chain order.
constexpr size_t kBlasBlocks = 16, kBlasFloats = kBlasBlocks * kLanes * kGemmDepth;

}  // namespace detail

}  // namespace stet

#ifndef STET_SEPARATE
#include "stet/model/product-inl.hpp"
#endif
