// Implements product.hpp.
#pragma once

#include <algorithm>

#include "stet/model/arithmetic.hpp"
#include "stet/model/product.hpp"

namespace stet {

namespace detail {

// Returns the packed rows of a tile in the layout [pieces][tiles][kc / inputs][tile_bytes].
inline std::byte* packed_rows(const Pass& p, const Arithmetic& by, size_t k0, size_t kc,
                              size_t tile, size_t tiles) {
  return p.scratch->packed.data() + (k0 * tiles + tile * kc) / by.inputs * by.tile_bytes;
}

inline void pack(Team t, const Pass& p, const Arithmetic& by, size_t depth, Rows x) {
  const size_t step = piece_depth(depth, by.depth, by.unit), tiles = tiles_of(x.count);
  t.each_range(tiles, 1, [&](Range some) {
    for (size_t k0 = 0; k0 < depth; k0 += step) {
      const size_t kc = std::min(step, depth - k0);
      for (size_t i = some.begin; i < some.end; ++i) {
        const size_t row = i * kTileRows;
        by.pack(*p.kernels, x.row(row) + k0, x.stride,
                static_cast<int>(std::min(size_t{kTileRows}, x.count - row)), kc,
                packed_rows(p, by, k0, kc, i, tiles));
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
template <class Output>
void group_product(const Pass& p, const Arithmetic& by, const Output& out, const Group& group,
                   const Group& after, const PackedRows& x, size_t first_row, float* local) {
  constexpr size_t kWidth = Output::kPanels * kPanel;
  static_assert(Output::kPanels <= Group::kMost);
  float* const held = local + Group::kMost * by.panel_floats;
  const size_t depth = out.w.depth(), step = piece_depth(depth, by.depth, by.unit),
               tiles = tiles_of(x.rows);
  for (size_t k0 = 0; k0 < depth; k0 += step) {
    const size_t kc = std::min(step, depth - k0);
    const bool first = k0 == 0, last = k0 + kc == depth;
    const Piece piece(out.w, group, k0, kc);
    const Piece next = last ? Piece(out.w, after, 0, std::min(step, depth))
                            : Piece(out.w, group, k0 + kc, std::min(step, depth - k0 - kc));
    const size_t late = tiles - std::min(tiles, kFetching);
    by.begin(*p.kernels, piece, local);
    for (size_t i = 0; i < tiles; ++i) {
      const size_t row = i * kTileRows, rows = std::min(size_t{kTileRows}, x.rows - row);
      const Rows tile = {held + kGemmRows * kWidth, kWidth, kWidth, rows};
      for (size_t panel = 0; panel < group.count; ++panel) {
        float* const sums = held + row * kWidth + panel * kPanel;
        const TileOutput to =
            last ? out.last_sums(group, panel, first_row + row, tile) : TileOutput{sums, kWidth};
        by.tile(*p.kernels, piece, panel, packed_rows(p, by, k0, kc, x.first + i, x.all), local,
                {first ? nullptr : sums, kWidth, to.at, to.ld, static_cast<int>(rows),
                 static_cast<int>(group.panels[panel].blocks),
                 i < late ? Fetch{} : next.fetch(panel, i - late, tiles - late)});
      }
      if (last) out.finish(*p.kernels, group, first_row + row, tile);
    }
  }
}

template <class Output>
void multiply(Team t, const Pass& p, const Output& out, Rows x) {
  const Arithmetic& by = arithmetic_of(p, out.w.type());
  float* const local = p.scratch->local[static_cast<size_t>(t.rank)].as<float>();
  const size_t groups = (out.outputs() + kPanelBlocks - 1) / kPanelBlocks,
               threads = static_cast<size_t>(t.size);
  const auto group = [&](size_t i) {
    const size_t first = i * kPanelBlocks;
    return i < groups ? out.group(first, std::min(kPanelBlocks, out.outputs() - first)) : Group{};
  };
  for (size_t row = 0; row < x.count; row += kGemmRows) {
    const size_t count = std::min(kGemmRows, x.count - row);
    pack(t, p, by, out.w.depth(), x.rows(row, count));
    const size_t tiles = tiles_of(count), parts = row_parts(groups, tiles, threads);
    t.each(groups * parts, [&](size_t i) {
      const Range some = part_of(tiles, parts, i % parts);
      const size_t first = some.begin * kTileRows;
      group_product(p, by, out, group(i / parts), group((i + threads) / parts),
                    {std::min(some.end * kTileRows, count) - first, some.begin, tiles}, row + first,
                    local);
    });
  }
}

}  // namespace detail

STET_INL size_t gemm_local_floats() {
  return std::max({detail::local_floats(detail::kFloats), detail::local_floats(detail::kPairs),
                   detail::local_floats(detail::kQuants8), detail::local_floats(detail::kQuants4),
                   detail::local_floats(detail::kQuantsMxfp4),
                   detail::local_floats(detail::kSupers),
                   detail::kBlasFloats + kPanel * kGemmDepth});
}

STET_INL void gemm(Team t, const Pass& p, const Matrix& w, Rows x, Rows y) {
  detail::multiply(t, p, detail::Plain{w, y}, x);
}
STET_INL void gemm_gated(Team t, const Pass& p, const Matrix& w, Gate gate, Rows x, Rows y) {
  detail::multiply(t, p, detail::Gated{w, y, gate}, x);
}

}  // namespace stet
