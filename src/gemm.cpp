#include "src/gemm.hpp"

#include <algorithm>
#include <cstring>

#ifdef STET_HAVE_BLAS
#include <cblas.h>
#endif

namespace stet {
namespace {

constexpr size_t kPanelBlocks = kPanel / kLanes;

// Inputs are taken in pieces of equal depth, multiples of `unit`, none deeper than `most`.
size_t piece_depth(size_t depth, size_t most, size_t unit) {
  const size_t pieces = (depth + most - 1) / most;
  return (depth / unit + pieces - 1) / pieces * unit;
}

size_t tiles_of(size_t rows) { return (rows + kTileRows - 1) / kTileRows; }

// Some blocks of a matrix, and of them the inputs k0 .. k0 + kc.
struct Piece {
  Piece(const Matrix& matrix, Range some, size_t first, size_t depth)
      : w(&matrix), block(some.begin), blocks(some.size()), k0(first), kc(depth), block_bytes(matrix.block_bytes()),
        offset(first * block_bytes / matrix.depth()), bytes(depth * block_bytes / matrix.depth()) {}

  const Matrix* w;
  size_t block, blocks, k0, kc;
  size_t block_bytes, offset, bytes;  // of a whole block; of a block, where this piece begins and how long it is

  const std::byte* weights(size_t b) const { return static_cast<const std::byte*>(w->block(0)) + (block + b) * block_bytes + offset; }
  // Fetches part `i` of `parts` towards the second-level cache.
  void prefetch(size_t i, size_t parts) const {
    constexpr size_t kLine = 64;
    const size_t lines = bytes / kLine, end = lines * blocks * (i + 1) / parts;
    for (size_t line = lines * blocks * i / parts; line < end;) {
      const size_t b = line / lines, stop = std::min(end, (b + 1) * lines);
      const std::byte* const first = weights(b) - b * lines * kLine;
      for (; line < stop; ++line) __builtin_prefetch(first + line * kLine, 0, 2);
    }
  }
};

// A tile's rows, and where its sums come from and go to.
struct Sums {
  const float* from;
  size_t ld_from;
  float* to;
  size_t ld_to;
  int rows;
};

// What the contracts do with a piece. kGroup panels are multiplied together: a tile's rows, once in the first-level cache,
// serve all of them. Packed rows of a tile: elements() of Packed for each kInputs inputs. Pieces are multiples of kUnit deep.

// Panels are widened once and reused for all rows, by the kernels named.
template <auto Kernels::*kPack, auto Kernels::*kTile>
struct Panels {
  using Packed = float;
  static constexpr size_t kInputs = 1, kUnit = 2, kDepth = kGemmDepth, kGroup = 3;
  static constexpr size_t kLocalFloats = kGroup * kDepth * kPanel;

  static size_t elements(const Kernels&) { return kTileRows; }
  static void pack(const Kernels& k, const float* x, size_t ldx, int rows, size_t kc, float* packed) {
    (k.*kPack)(x, ldx, rows, kc, packed);
  }
  static void begin(const Kernels& k, const Piece& p, float* local) {
    for (size_t b = 0; b < p.blocks; b += kPanelBlocks) {
      k.widen_panel[static_cast<int>(p.w->type())](p.w->block(p.block + b), std::min(kPanelBlocks, p.blocks - b),
                                                   p.w->depth(), p.k0, p.kc, local + b * kLanes * kDepth);
    }
  }
  static void tile(const Kernels& k, const Piece& p, size_t b, const float* packed, const float* local, const Sums& s) {
    (k.*kTile)(packed, local + b * kLanes * kDepth, p.kc, s.from, s.ld_from, s.to, s.ld_to, s.rows,
               static_cast<int>(std::min(kPanelBlocks, p.blocks - b)));
  }
};
using Floats = Panels<&Kernels::pack_rows, &Kernels::tile>;
using WidePairs = Panels<&Kernels::pack_rounded, &Kernels::tile_flushed>;

struct Pairs {  // weights as they stand
  using Packed = uint32_t;
  static constexpr size_t kInputs = 2, kUnit = 2, kDepth = kGemmDepth, kGroup = 3;
  static constexpr size_t kLocalFloats = 0;

  static size_t elements(const Kernels&) { return kTileRows; }
  static void pack(const Kernels& k, const float* x, size_t ldx, int rows, size_t kc, uint32_t* packed) {
    k.pack_pairs(x, ldx, rows, kc, packed);
  }
  static void begin(const Kernels&, const Piece&, float*) {}
  static void tile(const Kernels& k, const Piece& p, size_t b, const uint32_t* packed, const float*, const Sums& s) {
    k.tile_pairs(packed, p.weights(b), p.w->depth(), p.kc, s.from, s.ld_from, s.to, s.ld_to, s.rows,
                 static_cast<int>(std::min(kPanelBlocks, p.blocks - b)));
  }
};

struct Quants {
  using Packed = std::byte;
  static constexpr size_t kInputs = kQuantBlock, kUnit = kQuantStrip, kGroup = 3;
};

struct Quants8 : Quants {  // weights as they stand
  static constexpr size_t kDepth = 2048, kLocalFloats = 0;

  static size_t elements(const Kernels& k) { return k.packed_q8; }
  static void pack(const Kernels& k, const float* x, size_t ldx, int rows, size_t kc, std::byte* packed) {
    k.pack_q8(x, ldx, rows, kc, packed);
  }
  static void begin(const Kernels&, const Piece&, float*) {}
  static void tile(const Kernels& k, const Piece& p, size_t b, const std::byte* packed, const float*, const Sums& s) {
    k.tile_q8(packed, p.weights(b), p.w->depth(), p.kc, s.from, s.ld_from, s.to, s.ld_to, s.rows,
              static_cast<int>(std::min(kPanelBlocks, p.blocks - b)));
  }
};

struct Quants4 : Quants {  // expanded to bytes once and reused for all rows
  static constexpr size_t kDepth = 1024;
  static constexpr size_t kBlockFloats = kDepth / kQuantStrip * kStripBytesQ8 / sizeof(float);
  static constexpr size_t kLocalFloats = kGroup * kPanelBlocks * kBlockFloats;

  static size_t elements(const Kernels& k) { return k.packed_q4; }
  static void pack(const Kernels& k, const float* x, size_t ldx, int rows, size_t kc, std::byte* packed) {
    k.pack_q4(x, ldx, rows, kc, packed);
  }
  static void begin(const Kernels& k, const Piece& p, float* local) {
    for (size_t b = 0; b < p.blocks; ++b) k.expand_q4(p.weights(b), p.kc / kQuantStrip, local + b * kBlockFloats);
  }
  static void tile(const Kernels& k, const Piece& p, size_t b, const std::byte* packed, const float* local, const Sums& s) {
    k.tile_q4(packed, local + b * kBlockFloats, kDepth, p.kc, s.from, s.ld_from, s.to, s.ld_to, s.rows,
              static_cast<int>(std::min(kPanelBlocks, p.blocks - b)));
  }
};

template <class Arithmetic>
constexpr size_t local_floats() {
  return Arithmetic::kLocalFloats + kGemmRows * Arithmetic::kGroup * kPanel;
}

// Where the rows of a tile stand, packed: [pieces][tiles][kc / kInputs][elements()].
template <class Arithmetic>
typename Arithmetic::Packed* packed_rows(const Pass& p, size_t k0, size_t kc, size_t tile, size_t tiles) {
  return p.scratch->packed.as<typename Arithmetic::Packed>() + (k0 * tiles + tile * kc) / Arithmetic::kInputs * Arithmetic::elements(*p.kernels);
}

template <class Arithmetic>
void pack(Team t, const Pass& p, size_t depth, Rows x) {
  const size_t step = piece_depth(depth, Arithmetic::kDepth, Arithmetic::kUnit), tiles = tiles_of(x.count);
  t.each_range(tiles, 1, [&](Range some) {
    for (size_t k0 = 0; k0 < depth; k0 += step) {
      const size_t kc = std::min(step, depth - k0);
      for (size_t i = some.begin; i < some.end; ++i) {
        const size_t row = i * kTileRows;
        Arithmetic::pack(*p.kernels, x.row(row) + k0, x.stride, static_cast<int>(std::min(size_t{kTileRows}, x.count - row)), kc,
                         packed_rows<Arithmetic>(p, k0, kc, i, tiles));
      }
    }
  });
}

// A group of panels of up to 64 outputs for a block of rows. They are taken a piece at a time, and each piece serves all
// rows; between pieces the sums wait in `local`, so that each output stays one chain. While the tiles compute, the weights of
// the next piece come from memory: at the end, those of the group `after`, which this thread probably takes next.
template <class Arithmetic>
void group_product(const Pass& p, const Matrix& w, Range group, Range after, Rows x, Rows y, float* local) {
  constexpr size_t kWidth = Arithmetic::kGroup * kPanel;
  float* const sums = local + Arithmetic::kLocalFloats;
  const size_t depth = w.depth(), step = piece_depth(depth, Arithmetic::kDepth, Arithmetic::kUnit), tiles = tiles_of(x.count);
  for (size_t k0 = 0; k0 < depth; k0 += step) {
    const size_t kc = std::min(step, depth - k0);
    const bool first = k0 == 0, last = k0 + kc == depth;
    const Piece piece(w, group, k0, kc);
    const Piece next = last ? Piece(w, after, 0, step) : Piece(w, group, k0 + kc, std::min(step, depth - k0 - kc));
    Arithmetic::begin(*p.kernels, piece, local);
    for (size_t i = 0; i < tiles; ++i) {
      const size_t row = i * kTileRows;
      const int rows = static_cast<int>(std::min(size_t{kTileRows}, x.count - row));
      next.prefetch(i, tiles);
      for (size_t b = 0; b < group.size(); b += kPanelBlocks) {
        float* held = sums + row * kWidth + b * kLanes;
        const Sums s = {first ? nullptr : held, kWidth, last ? y.row(row) + (group.begin + b) * kLanes : held,
                        last ? y.stride : kWidth, rows};
        Arithmetic::tile(*p.kernels, piece, b, packed_rows<Arithmetic>(p, k0, kc, i, tiles), local, s);
      }
    }
  }
}

template <class Arithmetic>
void product(Team t, const Pass& p, const Matrix& w, Rows x, Rows y) {
  float* const local = p.scratch->local[static_cast<size_t>(t.rank)].as<float>();
  const size_t panels = (w.blocks() + kPanelBlocks - 1) / kPanelBlocks, threads = static_cast<size_t>(t.size);
  // As many groups for each thread.
  const size_t groups = std::min(panels, (panels + Arithmetic::kGroup * threads - 1) / (Arithmetic::kGroup * threads) * threads);
  const auto blocks = [&](size_t i) {
    const Range some = i < groups ? part_of(panels, groups, i) : Range{0, 0};
    return Range{some.begin * kPanelBlocks, std::min(some.end * kPanelBlocks, w.blocks())};
  };
  for (size_t row = 0; row < x.count; row += kGemmRows) {
    const size_t count = std::min(kGemmRows, x.count - row);
    pack<Arithmetic>(t, p, w.depth(), x.rows(row, count));
    t.each(groups, [&](size_t i) {
      group_product<Arithmetic>(p, w, blocks(i), blocks(i + threads), x.rows(row, count), y.rows(row, count), local);
    });
  }
}

}  // namespace

size_t gemm_local_floats() {
  return std::max({local_floats<Floats>(), local_floats<Pairs>(), local_floats<Quants8>(), local_floats<Quants4>()});
}

void gemm(Team t, const Pass& p, const Matrix& w, Rows x, Rows y) {
  if (w.type() == WeightType::q8) product<Quants8>(t, p, w, x, y);
  else if (w.type() == WeightType::q4) product<Quants4>(t, p, w, x, y);
  else if (p.contract == Contract::bf16 && p.kernels->tile_flushed != nullptr) product<WidePairs>(t, p, w, x, y);
  else if (p.contract == Contract::bf16) product<Pairs>(t, p, w, x, y);
  else product<Floats>(t, p, w, x, y);
}

#ifdef STET_HAVE_BLAS

bool have_blas() { return true; }

// Each thread multiplies its own outputs with single-threaded calls: OpenBLAS's own threads would compete with
// the team's.
void gemm_blas(Team t, const Pass& p, const Matrix& w, Rows x, Rows y) {
  constexpr size_t kBlocksAtOnce = 16, kWideFloats = kBlocksAtOnce * kLanes * kGemmDepth;
  static_assert(kWideFloats + kPanel * kGemmDepth <= local_floats<Floats>());
  float* const wide = p.scratch->local[static_cast<size_t>(t.rank)].as<float>();
  float* const panel = wide + kWideFloats;
  const size_t depth = w.depth(), step = piece_depth(depth, kGemmDepth, Floats::kUnit);
  t.each((w.blocks() + kBlocksAtOnce - 1) / kBlocksAtOnce, [&](size_t group) {
    const size_t b = group * kBlocksAtOnce, blocks = std::min(kBlocksAtOnce, w.blocks() - b), outputs = blocks * kLanes;
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
  });
}

#else

bool have_blas() { return false; }
void gemm_blas(Team t, const Pass& p, const Matrix& w, Rows x, Rows y) { gemm(t, p, w, x, y); }

#endif

}  // namespace stet
