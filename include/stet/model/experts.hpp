// Mixtures of experts: a router chooses some of many MLPs for each row, and their outputs are
// summed with the router's weights.
//
// Rows are grouped by expert. All gates and ups are computed before all last matrices. Each of
// these two steps is one operation, whose pieces the threads of a team share over all experts. A
// piece of the second step computes some columns of the output for all experts, so it can sum them
// itself in ascending order: y = +0, then y = fma(weight, output of the expert, y). The bits of a
// row do not depend on the rows that it is grouped with.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "stet/kernels/router.hpp"
#include "stet/model/expert_scratch.hpp"
#include "stet/model/layer.hpp"
#include "stet/model/weight_loader.hpp"

namespace stet {

// A router: logits = W x + b, in float32 under every contract.
struct ExpertRouter {
  Linear linear;  // [experts][what it reads]
  // [experts], see RouterSettings; empty: none
  Vector bias = {}, scale = {};
};

// The weights of `count` experts: y = down(f(gate x) (up x)). Each matrix holds all experts, and
// each expert begins at a packed block (WeightLoader::experts).
struct Experts {
  size_t count = 0;
  size_t width = 0;                      // intermediate size of one expert
  Matrix gate, up;                       // [experts][width][hidden]
  Matrix down;                           // [experts][hidden][width]
  Vector gate_bias, up_bias, down_bias;  // [experts][width] twice, [experts][hidden]; empty: none
};

// Names of experts: a tensor is called AT + `experts` + ".N.NAME.weight", where NAME is one of
// gate, up and down.
struct ExpertNames {
  const char *experts, *gate, *up, *down;
};
// Loads the experts of layer `at` ("layers.0.").
Experts load_experts(WeightLoader& w, const ModelConfig& c, const std::string& at,
                     const ExpertNames& names);

// Computes the weights of the experts for each row of x. They are left in p.scratch->experts.
void route(const LayerPass& at, const ExpertRouter& router, Rows x);
// y = the weighted sum of the experts' outputs for x, with the weights that route() left.
void mix_experts(const LayerPass& at, const Experts& experts, Gate f, Rows x, Rows y);
// p.out = the mixture of experts for x. The router reads x, too.
void experts(const LayerPass& at, const ExpertRouter& router, const Experts& experts, Gate f,
             Rows x);

// ---------------------------------------------------------------- how it is done

namespace detail {

// Rows that are computed together, and upper bounds that depend on their number alone.
struct ExpertRows {
  size_t row, count;  // of the pass
  size_t slots;       // of all experts
  size_t experts;     // that have a row
  size_t tiles;       // that the slots fill
};

// Returns the number of rows to compute together. If an intervention may give a row any number of
// experts, the slots have room for fewer rows.
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

// Number `a` of the experts that have rows.
struct ActiveExpert {
  ActiveExpert(const ExpertScratch& s, size_t a)
      : id(s.experts[a]), first(s.first[a]), rows(s.first[a + 1] - first), tile(s.tiles[a]) {}

  size_t id, first, rows, tile;  // the expert, its slots, its first tile
};

inline void add_bias(const Kernels& k, const Vector& bias, size_t at, float* y, size_t n) {
  if (!bias.empty()) k.add(y, bias.data() + at, n);
}

// ------------------------------------------------ few rows: a matrix-vector product of each expert

// Local memory of one thread: outputs, rounded inputs, and the gathered inputs of one expert.
struct ExpertRoom {
  ExpertRoom(const Pass& p, int rank) : at(p.scratch->local[static_cast<size_t>(rank)].data()) {}

  float* outputs(size_t i) const {
    return reinterpret_cast<float*>(at) + i * kGemvRows * kExpertOutputs;
  }
  template <class Input>
  Input* inputs() const {
    return reinterpret_cast<Input*>(at + kExpertOutputBytes);
  }

  std::byte* at;
};

// Rows of x in the form that the kernels of a type take. Each thread rounds them when it first
// needs them.
template <class Input>
struct ExpertInputs {
  ExpertInputs(const VectorKernels<Input>& kernels, Rows all, const ExpertRoom& room)
      : v(kernels), x(all), own(room.inputs<Input>()) {}

  void round() {
    if constexpr (!std::is_same_v<Input, float>) {
      for (size_t r = 0; !rounded && r < x.count; ++r)
        v.round(x.row(r), v.depth, own + r * v.per_row);
    }
    rounded = true;
  }
  size_t stride() const { return std::is_same_v<Input, float> ? x.stride : v.per_row; }
  const Input* row(size_t r) const {
    if constexpr (std::is_same_v<Input, float>)
      return x.row(r);
    else
      return own + r * v.per_row;
  }
  // Returns rows and the distance between them. Rows that do not follow each other are copied.
  std::pair<const Input*, size_t> gather(const uint32_t* rows, size_t n) {
    round();
    if (rows[n - 1] - rows[0] == n - 1) return {row(rows[0]), stride()};
    Input* const to = own + (std::is_same_v<Input, float> ? 0 : x.count * v.per_row);
    for (size_t i = 0; i < n; ++i)
      std::memcpy(to + i * v.per_row, row(rows[i]), v.per_row * sizeof(Input));
    return {to, v.per_row};
  }

  const VectorKernels<Input>& v;
  Rows x;
  Input* own;
  bool rounded = false;
};

// Computes products of one or two matrices of equal type for all experts, some outputs at a time.
// Calls finish(expert, first output, outputs, products) for each.
template <class Input, class Finish>
void few_hidden(const LayerPass& at, const VectorKernels<Input>& v, const Experts& e,
                const Matrix& w, const Matrix* second, const ExpertRows& rows, Rows x,
                const Finish& finish) {
  const Pass& p = at.p;
  const ExpertScratch& s = p.scratch->experts;
  const ExpertRoom room(p, at.t.rank);
  ExpertInputs<Input> inputs(v, x, room);
  const size_t blocks = w.blocks() / e.count,
               least =
                   std::max<size_t>(1, kPieceBytes / w.block_bytes() / (second != nullptr ? 2 : 1));
  at.t.each_range(rows.experts * blocks, least, [&](Range some) {
    for (size_t i = some.begin; i < some.end && i / blocks < s.active;) {
      const ActiveExpert expert(s, i / blocks);
      const size_t block = i % blocks, n = std::min({blocks - block, some.end - i, kExpertBlocks});
      const auto [from, stride] = inputs.gather(s.rows.data() + expert.first, expert.rows);
      for (const Matrix* m : {&w, second}) {
        if (m == nullptr) continue;
        v.gemv(m->block(expert.id * blocks + block), n, v.depth, from, stride,
               room.outputs(m == &w ? 0 : 1), kExpertOutputs, static_cast<int>(expert.rows));
      }
      finish(expert, block * kLanes, std::min(n * kLanes, e.width - block * kLanes), room);
      i += n;
    }
  });
}

// Computes the inputs of the last matrices.
inline void few_gates(const LayerPass& at, const Experts& e, Gate f, const ExpertRows& rows,
                      Rows x) {
  const Pass& p = at.p;
  const Kernels& k = *p.kernels;
  const Rows hidden = p.scratch->experts.hidden;
  const auto gated = [&](const ActiveExpert& expert, size_t output, size_t n, float* gate,
                         float* up, float* to) {
    add_bias(k, e.up_bias, expert.id * e.width + output, up, n);
    gate_kernel(k, f)(gate, up, to, n);
  };
  const auto gate_bias = [&](const ActiveExpert& expert, size_t output, float* gate, size_t n) {
    add_bias(k, e.gate_bias, expert.id * e.width + output, gate, n);
  };
  if (e.gate.type() == e.up.type()) {
    with_vectors(p, e.gate, [&](const auto& v) {
      few_hidden(at, v, e, e.gate, &e.up, rows, x,
                 [&](const ActiveExpert& expert, size_t output, size_t n, const ExpertRoom& room) {
                   for (size_t r = 0; r < expert.rows; ++r) {
                     float* const gate = room.outputs(0) + r * kExpertOutputs;
                     gate_bias(expert, output, gate, n);
                     gated(expert, output, n, gate, room.outputs(1) + r * kExpertOutputs,
                           hidden.row(expert.first + r) + output);
                   }
                 });
    });
    return;
  }
  with_vectors(p, e.gate, [&](const auto& v) {
    few_hidden(at, v, e, e.gate, nullptr, rows, x,
               [&](const ActiveExpert& expert, size_t output, size_t n, const ExpertRoom& room) {
                 for (size_t r = 0; r < expert.rows; ++r) {
                   float* const gate = hidden.row(expert.first + r) + output;
                   std::memcpy(gate, room.outputs(0) + r * kExpertOutputs, n * sizeof(float));
                   gate_bias(expert, output, gate, n);
                 }
               });
  });
  with_vectors(p, e.up, [&](const auto& v) {
    few_hidden(at, v, e, e.up, nullptr, rows, x,
               [&](const ActiveExpert& expert, size_t output, size_t n, const ExpertRoom& room) {
                 for (size_t r = 0; r < expert.rows; ++r) {
                   float* const gate = hidden.row(expert.first + r) + output;
                   gated(expert, output, n, gate, room.outputs(0) + r * kExpertOutputs, gate);
                 }
               });
  });
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

template <class Input>
void few_downs(const LayerPass& at, const VectorKernels<Input>& v, const Experts& e,
               const ExpertRows& rows, Rows y) {
  const Pass& p = at.p;
  const ExpertScratch& s = p.scratch->experts;
  const ExpertRoom room(p, at.t.rank);
  const size_t blocks = e.down.blocks() / e.count,
               least = std::max<size_t>(1, kPieceBytes / (e.down.block_bytes() * rows.experts));
  ExpertInputs<Input> inputs(v, s.hidden, room);
  at.t.each_range(blocks, least, [&](Range some) {
    inputs.x.count = s.first[s.active];
    inputs.round();
    for (size_t block = some.begin, n; block < some.end; block += n) {
      n = std::min(some.end - block, kExpertBlocks);
      const size_t column = block * kLanes, columns = std::min(n * kLanes, y.width - column);
      clear_columns(y, column, columns);
      for (size_t a = 0; a < s.active; ++a) {
        const ActiveExpert expert(s, a);
        v.gemv(e.down.block(expert.id * blocks + block), n, v.depth, inputs.row(expert.first),
               inputs.stride(), room.outputs(0), kExpertOutputs, static_cast<int>(expert.rows));
        for (size_t r = 0; r < expert.rows; ++r)
          add_weighted(p, e, expert, r, column, columns, room.outputs(0) + r * kExpertOutputs, y);
      }
    }
  });
}

// ------------------------------------------------ many rows: a panel serves all rows of its expert

// Packs rows of x, or slots if `slots`, into the tiles of their experts.
template <class Arithmetic>
void pack_slots(const LayerPass& at, const ExpertRows& rows, size_t depth, Rows x, bool slots) {
  const Pass& p = at.p;
  const ExpertScratch& s = p.scratch->experts;
  const size_t step = piece_depth(depth, Arithmetic::kDepth, Arithmetic::kUnit);
  float* const room = p.scratch->local[static_cast<size_t>(at.t.rank)].template as<float>();
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
        Arithmetic::pack(*p.kernels, from, stride, static_cast<int>(n), kc,
                         packed_rows<Arithmetic>(p, k0, kc, tile, rows.tiles));
      }
    }
  });
}

// An Output of group_product() (product.hpp): the inputs of an expert's last matrix. Gates and ups
// are multiplied together or, if their types differ, one after the other.
struct ExpertHidden {
  const Experts& e;
  const Matrix& w;
  const Matrix* second;
  bool ups;  // w has the ups; the gates are in `hidden`
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

template <class Arithmetic>
void many_hidden(const LayerPass& at, const Experts& e, const Matrix& w, const Matrix* second,
                 bool ups, Gate f, const ExpertRows& rows, Rows x) {
  const Pass& p = at.p;
  const ExpertScratch& s = p.scratch->experts;
  pack_slots<Arithmetic>(at, rows, w.depth(), x, false);
  float* const local = p.scratch->local[static_cast<size_t>(at.t.rank)].template as<float>();
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
    group_product<Arithmetic>(p, out, group(i), group(i + static_cast<size_t>(at.t.size)),
                              {out.expert.rows, out.expert.tile, rows.tiles}, 0, local);
  });
}

inline void many_gates(const LayerPass& at, const Experts& e, Gate f, const ExpertRows& rows,
                       Rows x) {
  const bool same = e.gate.type() == e.up.type();
  with_arithmetic(at.p, e.gate.type(), [&]<class Arithmetic>(Arithmetic) {
    many_hidden<Arithmetic>(at, e, e.gate, same ? &e.up : nullptr, false, f, rows, x);
  });
  if (same) return;
  with_arithmetic(at.p, e.up.type(), [&]<class Arithmetic>(Arithmetic) {
    many_hidden<Arithmetic>(at, e, e.up, nullptr, true, f, rows, x);
  });
}

// Computes the last matrices. Each piece has the rows of all experts for some columns, fewer of
// them if there are many threads.
template <class Arithmetic>
void many_downs(const LayerPass& at, const Experts& e, const ExpertRows& rows, Rows y) {
  const Pass& p = at.p;
  const ExpertScratch& s = p.scratch->experts;
  pack_slots<Arithmetic>(at, rows, e.down.depth(), s.hidden, true);
  float* const local = p.scratch->local[static_cast<size_t>(at.t.rank)].template as<float>();
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
      group_product<Arithmetic>(p, out, out.group(block, n), after,
                                {out.expert.rows, out.expert.tile, rows.tiles}, 0, local);
    }
  });
}

}  // namespace detail

inline Experts load_experts(WeightLoader& w, const ModelConfig& c, const std::string& at,
                            const ExpertNames& names) {
  const ExpertShape& e = c.experts;
  const auto load = [&](const char* name, int64_t rows, int64_t columns) {
    return w.experts("mlp", at + names.experts, e.count, {name, rows}, columns);
  };
  Experts x;
  x.count = static_cast<size_t>(e.count);
  x.width = static_cast<size_t>(e.width);
  x.gate = load(names.gate, e.width, c.hidden_size);
  x.up = load(names.up, e.width, c.hidden_size);
  x.down = load(names.down, c.hidden_size, e.width);
  return x;
}

inline void route(const LayerPass& at, const ExpertRouter& router, Rows x) {
  const auto& [t, p, c, index] = at;
  ExpertScratch& s = p.scratch->experts;
  const Rows logits = s.logits.rows(0, x.count), weights = s.weights.rows(0, x.count),
             chosen = s.chosen.rows(0, x.count);
  Pass exact = p;
  exact.contract = Contract::f32;
  linear(t, exact, router.linear, x, logits);
  point(t, p, Point::router_logits, index, logits);
  const RouterSettings settings = {c.experts.rule, logits.width, chosen.width,
                                   router.bias.empty() ? nullptr : router.bias.data(),
                                   router.scale.empty() ? nullptr : router.scale.data()};
  detail::each_row(t, x.count, [&](size_t r) {
    s.sound[r] = stet::route(*p.kernels, settings, logits.row(r), weights.row(r), chosen.row(r));
  });
  point(t, p, Point::expert_weights, index, weights);
  point(t, p, Point::expert_indices, index, chosen);
}

inline void mix_experts(const LayerPass& at, const Experts& experts, Gate f, Rows x, Rows y) {
  const size_t step = detail::expert_rows_at_once(at);
  for (size_t row = 0; row < x.count; row += step) {
    const size_t n = std::min(step, x.count - row);
    const detail::ExpertRows rows = detail::expert_rows(at, row, n);
    const Rows from = x.rows(row, n), to = y.rows(row, n);
    detail::group_rows(at, rows);
    if (n <= kGemvRows && rows.slots <= detail::few_slots(at.config.experts)) {
      detail::few_gates(at, experts, f, rows, from);
      detail::with_vectors(at.p, experts.down,
                           [&](const auto& v) { detail::few_downs(at, v, experts, rows, to); });
      continue;
    }
    detail::many_gates(at, experts, f, rows, from);
    detail::with_arithmetic(at.p, experts.down.type(), [&]<class Arithmetic>(Arithmetic) {
      detail::many_downs<Arithmetic>(at, experts, rows, to);
    });
  }
}

inline void experts(const LayerPass& at, const ExpertRouter& router, const Experts& experts, Gate f,
                    Rows x) {
  route(at, router, x);
  mix_experts(at, experts, f, x, at.p.out);
}

}  // namespace stet
