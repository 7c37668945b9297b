// Products of experts with many rows: a panel of weights serves all rows of its expert.
#pragma once

#include <algorithm>
#include <cstring>

#include "stet/model/expert_rows.hpp"
#include "stet/model/product-inl.hpp"

namespace stet::detail {

// Packs rows of x, or slots if `slots`, into the tiles of their experts.
inline void pack_slots(const LayerPass& at, const Arithmetic& by, const ExpertRows& rows,
                       size_t depth, Rows x, bool slots) {
  const Pass& p = at.p;
  const ExpertScratch& s = p.scratch->experts;
  const size_t step = piece_depth(depth, by.depth, by.unit);
  float* const room = p.scratch->local[static_cast<size_t>(at.t.rank)].as<float>();
  at.t.each_range(rows.tiles, 1, [&](Range some) {
    for (size_t tile = some.begin; tile < some.end && tile < s.tiles[s.active]; ++tile) {
      const auto after = std::upper_bound(s.tiles.begin(),
                                          s.tiles.begin() + static_cast<ptrdiff_t>(s.active), tile);
      const ActiveExpert expert(s, static_cast<size_t>(after - s.tiles.begin()) - 1);
      const size_t row = (tile - expert.tile) * kTileRows,
                   n = std::min(size_t{kTileRows}, expert.rows - row);
      for (size_t k0 = 0; k0 < depth; k0 += step) {
        const size_t kc = std::min(step, depth - k0);
        const float* from = x.row(expert.first + row) + k0;
        size_t stride = x.stride;
        if (!slots) {
          for (size_t r = 0; r < n; ++r)
            std::memcpy(room + r * kc, x.row(s.rows[expert.first + row + r]) + k0,
                        kc * sizeof(float));
          from = room;
          stride = kc;
        }
        by.pack(*p.kernels, from, stride, static_cast<int>(n), kc,
                packed_rows(p, by, k0, kc, tile, rows.tiles));
      }
    }
  });
}

// An Output of group_product() (product.hpp): the inputs of an expert's down projection. Gates and
// ups are multiplied together or, if their types differ, one after the other.
struct ExpertHidden {
  const Experts& e;
  const Matrix& w;
  const Matrix* second;
  bool ups;  // w is the up projection; the gates are in `hidden`
  Gate gate;
  Rows hidden;
  ActiveExpert expert;

  Group group(size_t block, size_t blocks) const {
    const size_t at = expert.id * (w.blocks() / e.count) + block;
    Group g{{{&w, at, blocks}, {second, at, blocks}}, size_t{second != nullptr ? 2U : 1U}};
    return g;
  }
  static constexpr size_t kPanels = 2;
  TileOutput last_sums(const Group&, size_t i, size_t, Rows tile) const {
    return {tile.data + i * kPanel, tile.stride};
  }
  void finish(const Kernels& k, const Group& g, size_t row, Rows tile) const {
    const size_t output = g.panels[0].block % (w.blocks() / e.count) * kLanes,
                 n = std::min(g.panels[0].blocks * kLanes, e.width - output),
                 bias = expert.id * e.width + output;
    for (size_t r = 0; r < tile.count; ++r) {
      float *const to = hidden.row(expert.first + row + r) + output, *const sums = tile.row(r);
      float* const up = second != nullptr ? sums + kPanel : sums;
      float* const gates = ups ? to : sums;
      if (!ups) add_bias(k, e.gate_bias, bias, gates, n);
      if (!ups && second == nullptr) {
        std::memcpy(to, gates, n * sizeof(float));
        continue;
      }
      add_bias(k, e.up_bias, bias, up, n);
      gate_kernel(k, gate)(gates, up, to, n);
    }
  }
};

// An Output that sums the experts' outputs.
struct ExpertSums {
  const Pass& p;
  const Experts& e;
  const Matrix& w;
  Rows y;
  ActiveExpert expert;

  static constexpr size_t kPanels = 1;
  Group group(size_t block, size_t blocks) const {
    return {{{&w, expert.id * (w.blocks() / e.count) + block, blocks}}, kPanels};
  }
  TileOutput last_sums(const Group&, size_t, size_t, Rows tile) const {
    return {tile.data, tile.stride};
  }
  void finish(const Kernels&, const Group& g, size_t row, Rows tile) const {
    const size_t column = g.panels[0].block % (w.blocks() / e.count) * kLanes,
                 n = std::min(g.panels[0].blocks * kLanes, y.width - column);
    for (size_t r = 0; r < tile.count; ++r)
      add_weighted(p, e, expert, row + r, column, n, tile.row(r), y);
  }
};

inline void many_hidden(const LayerPass& at, const Experts& e, const Matrix& w,
                        const Matrix* second, bool ups, Gate f, const ExpertRows& rows, Rows x) {
  const Pass& p = at.p;
  const Arithmetic& by = arithmetic_of(p, w.type());
  const ExpertScratch& s = p.scratch->experts;
  pack_slots(at, by, rows, w.depth(), x, false);
  float* const local = p.scratch->local[static_cast<size_t>(at.t.rank)].as<float>();
  const size_t blocks = w.blocks() / e.count, panels = (blocks + kPanelBlocks - 1) / kPanelBlocks;
  const auto output = [&](size_t a) {
    return ExpertHidden{e, w, second, ups, f, s.hidden, ActiveExpert(s, a)};
  };
  const auto group = [&](size_t i) {
    if (i / panels >= s.active) return Group{};
    const size_t block = i % panels * kPanelBlocks;
    return output(i / panels).group(block, std::min(kPanelBlocks, blocks - block));
  };
  at.t.each(rows.experts * panels, [&](size_t i) {
    if (i / panels >= s.active) return;
    const ExpertHidden out = output(i / panels);
    group_product(p, by, out, group(i), group(i + static_cast<size_t>(at.t.size)),
                  {out.expert.rows, out.expert.tile, rows.tiles}, 0, local);
  });
}

inline void many_gates(const LayerPass& at, const Experts& e, Gate f, const ExpertRows& rows,
                       Rows x) {
  const bool same = e.gate.type() == e.up.type();
  many_hidden(at, e, e.gate, same ? &e.up : nullptr, false, f, rows, x);
  if (!same) many_hidden(at, e, e.up, nullptr, true, f, rows, x);
}

// Computes the down projections. Each piece of work has the rows of all experts for some columns,
// and fewer columns if there are many threads.
inline void many_downs(const LayerPass& at, const Experts& e, const ExpertRows& rows, Rows y) {
  const Pass& p = at.p;
  const Arithmetic& by = arithmetic_of(p, e.down.type());
  const ExpertScratch& s = p.scratch->experts;
  pack_slots(at, by, rows, e.down.depth(), s.hidden, true);
  float* const local = p.scratch->local[static_cast<size_t>(at.t.rank)].as<float>();
  const size_t blocks = e.down.blocks() / e.count, threads = static_cast<size_t>(at.t.size);
  size_t wide = kPanelBlocks;
  while (wide > 1 && blocks / wide < 2 * threads) wide /= 2;
  at.t.each((blocks + wide - 1) / wide, [&](size_t i) {
    const size_t block = i * wide, n = std::min(wide, blocks - block), column = block * kLanes;
    clear_columns(y, column, std::min(n * kLanes, y.width - column));
    for (size_t a = 0; a < s.active; ++a) {
      const ExpertSums out{p, e, e.down, y, ActiveExpert(s, a)};
      const Group after = a + 1 < s.active
                              ? ExpertSums{p, e, e.down, y, ActiveExpert(s, a + 1)}.group(block, n)
                              : Group{};
      group_product(p, by, out, out.group(block, n), after,
                    {out.expert.rows, out.expert.tile, rows.tiles}, 0, local);
    }
  });
}

}  // namespace stet::detail
