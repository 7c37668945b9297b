#include "src/gemm.hpp"

#include <algorithm>
#include <cstring>

#ifdef STET_HAVE_BLAS
#include <cblas.h>
#endif

namespace stet {
namespace {

constexpr size_t kPanelBlocks = kPanel / kLanes;
constexpr size_t kGroup = 3;  // panels widened together: a tile's rows, once in the first-level cache, serve all of them
constexpr size_t kGroupBlocks = kGroup * kPanelBlocks;
constexpr size_t kGroupFloats = kGroup * kGemmDepth * kPanel, kSumFloats = kGemmRows * kGroup * kPanel;

// Inputs are taken in pieces of equal depth, none deeper than kGemmDepth.
size_t piece_depth(size_t depth) {
  const size_t pieces = (depth + kGemmDepth - 1) / kGemmDepth;
  return (depth / 2 + pieces - 1) / pieces * 2;
}

// The weights of one widening: a run of bytes in each block of a panel.
struct Piece {
  const std::byte* first;
  size_t stride, run, blocks;

  Piece(const Matrix& w, size_t block, size_t count, size_t k0, size_t kc) : blocks(count) {
    const size_t row = w.block_bytes() / w.even_columns();
    first = static_cast<const std::byte*>(w.block(block)) + k0 * row;
    stride = w.block_bytes();
    run = kc * row;
  }
  // Fetches part `i` of `parts` towards the second-level cache.
  void prefetch(size_t i, size_t parts) const {
    constexpr size_t kLine = 64;
    const size_t lines = run / kLine, all = lines * blocks;
    for (size_t line = all * i / parts; line < all * (i + 1) / parts; ++line) {
      __builtin_prefetch(first + line / lines * stride + line % lines * kLine, 0, 2);
    }
  }
};

// Some panels of up to 64 outputs for a block of rows. They are widened a piece at a time and reused for all rows;
// between pieces the sums wait in `sums`, so that each output stays one chain. While the tiles compute, the weights of
// the next piece come from memory. `end` is the last block of this thread, plus one.
void group_product(const Pass& p, const Matrix& w, size_t block, size_t end, Rows x, Rows y, float* local) {
  const Kernels& k = *p.kernels;
  const float* packed = p.scratch->packed.as<float>();
  float* const sums = local + kGroupFloats;
  const size_t blocks = std::min(kGroupBlocks, end - block), after = block + blocks;
  const size_t depth = w.even_columns(), step = piece_depth(depth), tiles = (x.count + kTileRows - 1) / kTileRows;
  for (size_t k0 = 0; k0 < depth; k0 += step) {
    const size_t kc = std::min(step, depth - k0);
    const bool first = k0 == 0, last = k0 + kc == depth;
    for (size_t b = 0; b < blocks; b += kPanelBlocks) {
      k.widen_panel[static_cast<int>(w.type())](w.block(block + b), std::min(kPanelBlocks, blocks - b), depth, k0, kc,
                                                local + b * kLanes * kGemmDepth);
    }
    const Piece next = last ? Piece(w, after, std::min(kGroupBlocks, end - after), 0, step)
                            : Piece(w, block, blocks, k0 + kc, std::min(step, depth - k0 - kc));
    for (size_t i = 0; i < tiles; ++i) {
      const size_t row = i * kTileRows;
      const int rows = static_cast<int>(std::min(size_t{kTileRows}, x.count - row));
      next.prefetch(i, tiles);
      for (size_t b = 0; b < blocks; b += kPanelBlocks) {
        float* held = sums + row * kGroup * kPanel + b * kLanes;
        k.tile(packed + (k0 * tiles + i * kc) * kTileRows, local + b * kLanes * kGemmDepth, kc, first ? nullptr : held,
               kGroup * kPanel, last ? y.row(row) + (block + b) * kLanes : held, last ? y.stride : kGroup * kPanel, rows,
               static_cast<int>(std::min(kPanelBlocks, blocks - b)));
      }
    }
  }
}

// x packed for the tile kernel: [pieces][tiles][piece depth][kTileRows].
void pack(Team t, const Pass& p, size_t depth, Rows x) {
  float* packed = p.scratch->packed.as<float>();
  const size_t step = piece_depth(depth), tiles = (x.count + kTileRows - 1) / kTileRows;
  const Range mine = t.share(tiles);
  for (size_t k0 = 0; k0 < depth; k0 += step) {
    const size_t kc = std::min(step, depth - k0);
    for (size_t i = mine.begin; i < mine.end; ++i) {
      const size_t row = i * kTileRows;
      p.kernels->pack_rows(x.row(row) + k0, x.stride, static_cast<int>(std::min(size_t{kTileRows}, x.count - row)),
                           kc, packed + (k0 * tiles + i * kc) * kTileRows);
    }
  }
  t.barrier();
}

}  // namespace

size_t gemm_local_floats() { return kGroupFloats + kSumFloats; }

void gemm(Team t, const Pass& p, const Matrix& w, Rows x, Rows y) {
  float* local = p.scratch->local[static_cast<size_t>(t.rank)].as<float>();
  for (size_t row = 0; row < x.count; row += kGemmRows) {
    const size_t count = std::min(kGemmRows, x.count - row);
    pack(t, p, w.even_columns(), x.rows(row, count));
    const Range mine = t.share(w.blocks());
    for (size_t b = mine.begin; b < mine.end; b += kGroupBlocks) {
      group_product(p, w, b, mine.end, x.rows(row, count), y.rows(row, count), local);
    }
    t.barrier();
  }
}

#ifdef STET_HAVE_BLAS

bool have_blas() { return true; }

// Each thread multiplies its own outputs with single-threaded calls: OpenBLAS's own threads would compete with
// the team's. The shape of each call, and so its bits, depends on the number of threads.
void gemm_blas(Team t, const Pass& p, const Matrix& w, Rows x, Rows y) {
  constexpr size_t kBlocksAtOnce = 16, kWideFloats = kBlocksAtOnce * kLanes * kGemmDepth;
  static_assert(kWideFloats + kPanel * kGemmDepth <= kGroupFloats + kSumFloats);
  float* const wide = p.scratch->local[static_cast<size_t>(t.rank)].as<float>();
  float* const panel = wide + kWideFloats;
  const size_t depth = w.even_columns(), step = piece_depth(depth);
  const Range mine = t.share(w.blocks());
  for (size_t b = mine.begin; b < mine.end; b += kBlocksAtOnce) {
    const size_t blocks = std::min(kBlocksAtOnce, mine.end - b), outputs = blocks * kLanes;
    for (size_t k0 = 0; k0 < depth; k0 += step) {
      const size_t kc = std::min(step, depth - k0);
      for (size_t i = 0; i < blocks; i += kPanelBlocks) {
        const size_t n = std::min(kPanelBlocks, blocks - i);
        p.kernels->widen_panel[static_cast<int>(w.type())](w.block(b + i), n, depth, k0, kc, panel);
        for (size_t k = 0; k < kc; ++k) {  // out of chain order: (1, 0, 3, 2, ...) -> (0, 1, 2, 3, ...)
          std::memcpy(wide + k * outputs + i * kLanes, panel + (k ^ 1) * kPanel, n * kLanes * sizeof(float));
        }
      }
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, static_cast<int>(x.count), static_cast<int>(outputs),
                  static_cast<int>(kc), 1.0f, x.data + k0, static_cast<int>(x.stride), wide, static_cast<int>(outputs),
                  k0 == 0 ? 0.0f : 1.0f, y.data + b * kLanes, static_cast<int>(y.stride));
    }
  }
  t.barrier();
}

#else

bool have_blas() { return false; }
void gemm_blas(Team t, const Pass& p, const Matrix& w, Rows x, Rows y) { gemm(t, p, w, x, y); }

#endif

}  // namespace stet
