// Products of weights with many rows of inputs, by the tile kernels. The work is divided so that a
// panel of weights, the rows beside it and the sums stay in the caches.
#pragma once

#include <algorithm>

#include "stet/api.h"
#include "stet/model/panels.hpp"
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
