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

// Each of the following types is the arithmetic of a contract for one piece of a group of panels.
// The depth of a piece is a multiple of kUnit and at most kDepth inputs. The piece therefore stays
// in the second-level cache beside the next piece and the sums (bench/README.md). A tile of packed
// rows has kElements of Packed per kInputs inputs. begin() prepares the weights in `local`, panel
// after panel.

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

// Widens panels once and reuses them for all rows. kPack and kTile are the kernels.
template <auto Kernels::*kPack, auto Kernels::*kTile, size_t kBegin = 2>
struct Panels {
  using Packed = float;
  static constexpr size_t kInputs = 1, kElements = kTileRows, kUnit = kBegin, kDepth = kGemmDepth;
  static constexpr size_t kPanelFloats = kDepth * kPanel;

  static void pack(const Kernels& k, const float* x, size_t ldx, int rows, size_t kc,
                   float* packed) {
    (k.*kPack)(x, ldx, rows, kc, packed);
  }
  static void begin(const Kernels& k, const Piece& p, float* local) {
    for (size_t i = 0; i < p.group->count; ++i)
      widen_panel(k, p.panel(i), p.k0, p.kc, local + i * kPanelFloats);
  }
  static void tile(const Kernels& k, const Piece& p, size_t i, const float* packed,
                   const float* local, const Tile& sums) {
    (k.*kTile)(packed, local + i * kPanelFloats, p.kc, sums);
  }
};
using Floats = Panels<&Kernels::pack_rows, &Kernels::tile>;
using WideMxfp4 = Panels<&Kernels::pack_rows, &Kernels::tile, kStripMxfp4>;
using WidePairs = Panels<&Kernels::pack_rounded, &Kernels::tile_flushed>;

struct Pairs {  // weights used in place
  using Packed = uint32_t;
  static constexpr size_t kInputs = 2, kElements = kTileRows, kUnit = 2, kDepth = 2048;
  static constexpr size_t kPanelFloats = 0;

  static void pack(const Kernels& k, const float* x, size_t ldx, int rows, size_t kc,
                   uint32_t* packed) {
    k.pack_pairs(x, ldx, rows, kc, packed);
  }
  static void begin(const Kernels&, const Piece&, float*) {}
  static void tile(const Kernels& k, const Piece& p, size_t i, const uint32_t* packed, const float*,
                   const Tile& sums) {
    k.tile_pairs(packed, p.weights(i), p.w->depth(), p.kc, sums);
  }
};

// Weights in blocks of 32, whose inputs are rounded to int8.
struct Quants {
  using Packed = QuantTile;
  static constexpr size_t kInputs = kQuantBlock, kElements = 1, kUnit = kQuantStrip;

  static void pack(const Kernels& k, const float* x, size_t ldx, int rows, size_t kc,
                   QuantTile* packed) {
    k.pack_quants(x, ldx, rows, kc, packed);
  }
};

struct Quants8 : Quants {  // weights used in place
  static constexpr size_t kDepth = 2048, kPanelFloats = 0;

  static void begin(const Kernels&, const Piece&, float*) {}
  static void tile(const Kernels& k, const Piece& p, size_t i, const QuantTile* packed,
                   const float*, const Tile& sums) {
    k.tile_q8(packed, p.weights(i), p.w->depth(), p.kc, sums);
  }
};

// Expands weights to bytes once and reuses them for all rows.
template <auto kExpand, auto kTile, size_t kStripBytes, size_t kBegin = kQuantStrip>
struct Expanded : Quants {
  static constexpr size_t kUnit = kBegin, kDepth = 1024;
  static constexpr size_t kBlockFloats = kDepth / kQuantStrip * kStripBytes / sizeof(float);
  static constexpr size_t kPanelFloats = kPanelBlocks * kBlockFloats;

  static void begin(const Kernels& k, const Piece& p, float* local) {
    for (size_t i = 0; i < p.group->count; ++i) {
      for (size_t b = 0; b < p.panel(i).blocks; ++b) {
        (k.*kExpand)(p.weights(i, b), p.kc / kQuantStrip,
                     local + i * kPanelFloats + b * kBlockFloats);
      }
    }
  }
  static void tile(const Kernels& k, const Piece& p, size_t i, const QuantTile* packed,
                   const float* local, const Tile& sums) {
    (k.*kTile)(packed, local + i * kPanelFloats, kDepth, p.kc, sums);
  }
};
using Quants4 = Expanded<&Kernels::expand_q4, &Kernels::tile_q4, kStripBytesQ8>;
using Quants5 = Expanded<&Kernels::expand_q5, &Kernels::tile_q8, kStripBytesQ8>;
using QuantsMxfp4 =
    Expanded<&Kernels::expand_mxfp4, &Kernels::tile_mxfp4, kExpandedMxfp4, kStripMxfp4>;

// Weights in super-blocks: expands them to bytes once and reuses them for all rows.
struct Supers {
  using Packed = SuperTile;
  static constexpr size_t kInputs = kQuantBlock, kElements = 1, kUnit = kSuperBlock, kDepth = 1024;
  static constexpr size_t kBlockFloats = kDepth / kQuantBlock * kExpandedBlock / sizeof(float);
  static constexpr size_t kPanelFloats = kPanelBlocks * kBlockFloats;

  static void pack(const Kernels& k, const float* x, size_t ldx, int rows, size_t kc,
                   SuperTile* packed) {
    k.pack_super(x, ldx, rows, kc, packed);
  }
  static void begin(const Kernels& k, const Piece& p, float* local) {
    for (size_t i = 0; i < p.group->count; ++i) {
      for (size_t b = 0; b < p.panel(i).blocks; ++b) {
        k.expand_super[super_index(p.w->type())](p.weights(i, b), p.kc / kSuperBlock,
                                                 local + i * kPanelFloats + b * kBlockFloats);
      }
    }
  }
  static void tile(const Kernels& k, const Piece& p, size_t i, const SuperTile* packed,
                   const float* local, const Tile& sums) {
    k.tile_super[super_index(p.w->type())](packed, local + i * kPanelFloats, kDepth, p.kc, sums);
  }
};

// Returns the size of a thread's local memory. It holds the prepared weights, the sums of all rows
// between the pieces of a group, and finally the sums of a tile.
template <class Arithmetic>
constexpr size_t local_floats() {
  return Group::kMost * (Arithmetic::kPanelFloats + (kGemmRows + kTileRows) * kPanel);
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

// Returns the packed rows of a tile in the layout [pieces][tiles][kc / kInputs][kElements].
template <class Arithmetic>
typename Arithmetic::Packed* packed_rows(const Pass& p, size_t k0, size_t kc, size_t tile,
                                         size_t tiles) {
  return p.scratch->packed.as<typename Arithmetic::Packed>() +
         (k0 * tiles + tile * kc) / Arithmetic::kInputs * Arithmetic::kElements;
}

template <class Arithmetic>
void pack(Team t, const Pass& p, size_t depth, Rows x) {
  const size_t step = piece_depth(depth, Arithmetic::kDepth, Arithmetic::kUnit),
               tiles = tiles_of(x.count);
  t.each_range(tiles, 1, [&](Range some) {
    for (size_t k0 = 0; k0 < depth; k0 += step) {
      const size_t kc = std::min(step, depth - k0);
      for (size_t i = some.begin; i < some.end; ++i) {
        const size_t row = i * kTileRows;
        Arithmetic::pack(*p.kernels, x.row(row) + k0, x.stride,
                         static_cast<int>(std::min(size_t{kTileRows}, x.count - row)), kc,
                         packed_rows<Arithmetic>(p, k0, kc, i, tiles));
      }
    }
  });
}

// Packed rows that are multiplied together: `rows` rows from tile `first` of `all` tiles.
struct PackedRows {
  size_t rows, first, all;
};

// Multiplies a group of panels with a block of rows, the first of which is row `first_row` of the
// output. Pieces of the panels are taken in turn, and each serves all rows. Between pieces the sums
// are kept in `local`, so that each output stays one chain.
//
// During the last kFetching tiles, the weights of the next piece are prefetched. After the last
// piece, these are the weights of the group `after`, which this thread probably takes next.
// Prefetching earlier does not help: the rows of the remaining tiles would evict the weights from
// the second-level cache.
constexpr size_t kFetching = 24;
template <class Arithmetic, class Output>
void group_product(const Pass& p, const Output& out, const Group& group, const Group& after,
                   const PackedRows& x, size_t first_row, float* local) {
  constexpr size_t kWidth = Output::kPanels * kPanel;
  static_assert(Output::kPanels <= Group::kMost);
  float* const held = local + Group::kMost * Arithmetic::kPanelFloats;
  const size_t depth = out.w.depth(),
               step = piece_depth(depth, Arithmetic::kDepth, Arithmetic::kUnit),
               tiles = tiles_of(x.rows);
  for (size_t k0 = 0; k0 < depth; k0 += step) {
    const size_t kc = std::min(step, depth - k0);
    const bool first = k0 == 0, last = k0 + kc == depth;
    const Piece piece(out.w, group, k0, kc);
    const Piece next = last ? Piece(out.w, after, 0, std::min(step, depth))
                            : Piece(out.w, group, k0 + kc, std::min(step, depth - k0 - kc));
    const size_t late = tiles - std::min(tiles, kFetching);
    Arithmetic::begin(*p.kernels, piece, local);
    for (size_t i = 0; i < tiles; ++i) {
      const size_t row = i * kTileRows, rows = std::min(size_t{kTileRows}, x.rows - row);
      const Rows tile = {held + kGemmRows * kWidth, kWidth, kWidth, rows};
      for (size_t panel = 0; panel < group.count; ++panel) {
        float* const sums = held + row * kWidth + panel * kPanel;
        const TileOutput to =
            last ? out.last_sums(group, panel, first_row + row, tile) : TileOutput{sums, kWidth};
        Arithmetic::tile(*p.kernels, piece, panel,
                         packed_rows<Arithmetic>(p, k0, kc, x.first + i, x.all), local,
                         {first ? nullptr : sums, kWidth, to.at, to.ld, static_cast<int>(rows),
                          static_cast<int>(group.panels[panel].blocks),
                          i < late ? Fetch{} : next.fetch(panel, i - late, tiles - late)});
      }
      if (last) out.finish(*p.kernels, group, first_row + row, tile);
    }
  }
}

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

template <class Arithmetic, class Output>
void product(Team t, const Pass& p, const Output& out, Rows x) {
  float* const local = p.scratch->local[static_cast<size_t>(t.rank)].as<float>();
  const size_t groups = (out.outputs() + kPanelBlocks - 1) / kPanelBlocks,
               threads = static_cast<size_t>(t.size);
  const auto group = [&](size_t i) {
    const size_t first = i * kPanelBlocks;
    return i < groups ? out.group(first, std::min(kPanelBlocks, out.outputs() - first)) : Group{};
  };
  for (size_t row = 0; row < x.count; row += kGemmRows) {
    const size_t count = std::min(kGemmRows, x.count - row);
    pack<Arithmetic>(t, p, out.w.depth(), x.rows(row, count));
    const size_t tiles = tiles_of(count), parts = row_parts(groups, tiles, threads);
    t.each(groups * parts, [&](size_t i) {
      const Range some = part_of(tiles, parts, i % parts);
      const size_t first = some.begin * kTileRows;
      group_product<Arithmetic>(p, out, group(i / parts), group((i + threads) / parts),
                                {std::min(some.end * kTileRows, count) - first, some.begin, tiles},
                                row + first, local);
    });
  }
}

// Calls f with the arithmetic that multiplies weights of this type.
template <class F>
void with_arithmetic(const Pass& p, WeightType type, F f) {
  if (type == WeightType::q8)
    f(Quants8());
  else if (type == WeightType::q4)
    f(Quants4());
  else if (type == WeightType::q5)
    f(Quants5());
  else if (type == WeightType::mxfp4 && p.contract == Contract::ggml)
    f(QuantsMxfp4());
  else if (type == WeightType::mxfp4)
    f(WideMxfp4());
  else if (is_super(type))
    f(Supers());
  else if (p.contract == Contract::bf16 && p.kernels->tile_flushed != nullptr)
    f(WidePairs());
  else if (p.contract == Contract::bf16)
    f(Pairs());
  else
    f(Floats());
}

template <class Output>
void multiply(Team t, const Pass& p, const Output& out, Rows x) {
  with_arithmetic(p, out.w.type(),
                  [&]<class Arithmetic>(Arithmetic) { product<Arithmetic>(t, p, out, x); });
}

// OpenBLAS multiplies this many packed blocks at once. Local memory holds them widened in input
// order, and one panel widened in chain order.
constexpr size_t kBlasBlocks = 16, kBlasFloats = kBlasBlocks * kLanes * kGemmDepth;

}  // namespace detail

inline size_t gemm_local_floats() {
  return std::max({detail::local_floats<detail::Floats>(), detail::local_floats<detail::Pairs>(),
                   detail::local_floats<detail::Quants8>(), detail::local_floats<detail::Quants4>(),
                   detail::local_floats<detail::QuantsMxfp4>(),
                   detail::local_floats<detail::Supers>(),
                   detail::kBlasFloats + kPanel * kGemmDepth});
}

inline void gemm(Team t, const Pass& p, const Matrix& w, Rows x, Rows y) {
  detail::multiply(t, p, detail::Plain{w, y}, x);
}
inline void gemm_gated(Team t, const Pass& p, const Matrix& w, Gate gate, Rows x, Rows y) {
  detail::multiply(t, p, detail::Gated{w, y, gate}, x);
}

}  // namespace stet
