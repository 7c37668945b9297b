// The weights of experts, and rows grouped by expert.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "stet/kernels/router.hpp"
#include "stet/model/expert_scratch.hpp"
#include "stet/model/hooks.hpp"
#include "stet/model/layer.hpp"

namespace stet {

// The weights of `count` experts: y = down(f(gate x) (up x)). Each matrix holds all experts, and
// each expert begins at a packed block (WeightLoader::experts).
struct Experts {
  size_t count = 0;
  size_t width = 0;                      // intermediate size of one expert
  Matrix gate, up;                       // [experts][width][hidden]
  Matrix down;                           // [experts][hidden][width]
  Vector gate_bias, up_bias, down_bias;  // [experts][width] twice, [experts][hidden]; empty: none
};

namespace detail {

// Rows that are computed together. The numbers of slots, experts and tiles are upper bounds. They
// depend on the number of rows, not on the experts that the router chose.
struct ExpertRows {
  size_t row, count;  // rows [row, row + count) of the pass
  size_t slots;       // slots of all experts
  size_t experts;     // experts that have a row
  size_t tiles;       // tiles of all experts' slots
};

// Returns the number of rows to compute together. It is smaller if an intervention may choose any
// number of experts, because each row may then need a slot for every expert.
inline size_t expert_rows_at_once(const LayerPass& at) {
  const Pass& p = at.p;
  const size_t slots = p.scratch->experts.hidden.count,
               most = p.hooks != nullptr && p.hooks->may_change(Point::expert_weights, at.index)
                          ? static_cast<size_t>(at.config.experts.count)
                          : static_cast<size_t>(at.config.experts.chosen);
  return std::min(kGemmRows, slots / most);
}

inline ExpertRows expert_rows(const LayerPass& at, size_t row, size_t rows) {
  const auto count = static_cast<size_t>(at.config.experts.count);
  const bool changed =
      at.p.hooks != nullptr && at.p.hooks->may_change(Point::expert_weights, at.index);
  const size_t slots = rows * (changed ? count : static_cast<size_t>(at.config.experts.chosen));
  const size_t active = std::min(count, slots);
  return {row, rows, slots, active, slots / kTileRows + active};
}

inline void group_rows(const LayerPass& at, const ExpertRows& rows) {
  ExpertScratch& s = at.p.scratch->experts;
  at.t.each(1, [&](size_t) {
    s.active =
        group_by_expert(s.weights.row(rows.row), s.weights.stride, rows.count, s.weights.width,
                        {s.experts.data(), s.first.data(), s.rows.data(), s.slot_weights.data()});
    s.tiles[0] = 0;
    for (size_t a = 0; a < s.active; ++a)
      s.tiles[a + 1] = s.tiles[a] + static_cast<uint32_t>(tiles_of(s.first[a + 1] - s.first[a]));
    for (size_t r = rows.row; r < rows.row + rows.count && s.failed_layer < 0; ++r) {
      if (s.sound[r]) continue;
      s.failed_layer = static_cast<int64_t>(at.index);
      s.failed_row = r;
    }
  });
}

// An expert that has rows, by its index `a` among those.
struct ActiveExpert {
  ActiveExpert(const ExpertScratch& s, size_t a)
      : id(s.experts[a]), first(s.first[a]), rows(s.first[a + 1] - first), tile(s.tiles[a]) {}

  size_t id, first, rows, tile;  // expert; first slot and number of slots; first tile
};

// Copies the inputs of the down projections to where hooks want them.
inline void copy_hidden(const LayerPass& at, const ExpertRows& rows) {
  const Hooks* const hooks = at.p.hooks;
  if (hooks == nullptr || !hooks->wants(Point::expert_post, at.index)) return;
  const ExpertScratch& s = at.p.scratch->experts;
  const size_t width = s.hidden.width, count = s.chosen.width;
  const auto copy = [&](size_t first, const Rows& to) {
    const size_t begin = std::max(first, rows.row),
                 end = std::min(first + to.count, rows.row + rows.count);
    for (size_t r = begin; r < end; ++r) std::fill_n(to.row(r - first), to.width, 0.0f);
    for (size_t a = 0; a < s.active; ++a) {
      const ActiveExpert expert(s, a);
      for (size_t slot = expert.first; slot < expert.first + expert.rows; ++slot) {
        const size_t r = rows.row + s.rows[slot];
        if (r < begin || r >= end) continue;
        const size_t place = place_of_expert(s.chosen.row(r), count, expert.id);
        if (place == count) continue;  // computed for an intervention alone
        std::memcpy(to.row(r - first) + place * width, s.hidden.row(slot), width * sizeof(float));
      }
    }
  };
  at.t.each(1, [&](size_t) { hooks->each_copy(Point::expert_post, at.index, copy); });
}

inline void add_bias(const Kernels& k, const Vector& bias, size_t at, float* y, size_t n) {
  if (!bias.empty()) k.add(y, bias.data() + at, n);
}

// Adds the weighted output of an expert to some columns of a row.
inline void add_weighted(const Pass& p, const Experts& e, const ActiveExpert& expert, size_t row,
                         size_t column, size_t n, float* product, Rows y) {
  const ExpertScratch& s = p.scratch->experts;
  add_bias(*p.kernels, e.down_bias, expert.id * y.width + column, product, n);
  const size_t slot = expert.first + row;
  p.kernels->weighted_add(y.row(s.rows[slot]) + column, product, s.slot_weights[slot], n);
}

inline void clear_columns(Rows y, size_t column, size_t n) {
  for (size_t r = 0; r < y.count; ++r) std::fill_n(y.row(r) + column, n, 0.0f);
}

}  // namespace detail

}  // namespace stet
