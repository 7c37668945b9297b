// Mixtures of experts: a router chooses some of many MLPs for each row, and their outputs are
// summed with the router's weights.
//
// Rows are grouped by expert. All gates and ups are computed before all last matrices. Each of
// these two steps is one operation, whose pieces the threads of a team share over all experts. A
// piece of the second step computes some columns of the output for all experts. So it can sum them
// itself in ascending order: y = +0, then y = fma(weight, output, y). The bits of a row do not
// depend on the rows that it is grouped with.
#pragma once

#include <algorithm>
#include <string>

#include "stet/model/expert_tiles.hpp"
#include "stet/model/expert_vectors.hpp"
#include "stet/model/weight_loader.hpp"

namespace stet {

// A router: logits = W x + b, in float32 under every contract.
struct ExpertRouter {
  Linear linear;  // [experts][what it reads]
  // [experts], see RouterSettings; empty: none
  Vector bias = {}, scale = {};
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
  const Team t = at.t;
  const Pass& p = at.p;
  const ModelConfig& c = at.config;
  const size_t index = at.index;
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
