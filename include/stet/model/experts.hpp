// Mixtures of experts: a router chooses some of many MLPs for each row, and their outputs are
// summed with the router's weights.
//
// Rows are grouped by expert. The gate and up projections of all experts are computed before their
// down projections. Each of these two steps is one operation, whose pieces the threads of a team
// share over all experts. A piece of the second step computes some columns of the output for all
// experts. It can therefore sum the experts in ascending order by itself: y = +0, then y =
// fma(weight, output, y). The bits of a row do not depend on the rows that it is grouped with.
//
// Some models have a shared expert, an MLP for all rows, whose output is added to that sum.
#pragma once

#include <algorithm>
#include <string>

#include "stet/model/expert_tiles.hpp"
#include "stet/model/expert_vectors.hpp"
#include "stet/model/layer.hpp"
#include "stet/model/weight_loader.hpp"

namespace stet {

// A router: logits = W x + b, in float32 under every contract.
struct ExpertRouter {
  Linear linear;  // [experts][width of its input]
  // [experts], see RouterSettings; empty: none
  Vector bias = {}, scale = {};
};

// Names of experts: a tensor of layer `at` is called at + `experts` + ".N.NAME.weight", where NAME
// is `gate`, `up` or `down`.
struct ExpertNames {
  const char *experts, *gate, *up, *down;
};
// Loads the experts of layer `at` ("layers.0.").
Experts load_experts(WeightLoader& w, const ModelConfig& c, const std::string& at,
                     const ExpertNames& names);

// An MLP that every row passes through. Its output is multiplied by sigmoid(gate x), in float32 under
// every contract, if there is such a gate.
struct SharedExpert {
  Linear gate_up, down;  // [2 width][hidden], [hidden][width]
  Linear gate = {};      // [1][hidden]; empty: none
};
// Loads the shared expert, of width c.experts.shared, from the tensors `at` + "gate_proj",
// "up_proj" and "down_proj". If `gate` is not empty, it names the tensor of SharedExpert::gate.
SharedExpert load_shared_expert(WeightLoader& w, const ModelConfig& c, const std::string& at,
                                const std::string& gate = "");

// Computes the weights of the experts for each row of x. They are left in p.scratch->experts.
void route(const LayerPass& at, const ExpertRouter& router, Rows x);
// y = the weighted sum of the experts' outputs for x, with the weights that route() left.
void mix_experts(const LayerPass& at, const Experts& experts, Gate f, Rows x, Rows y);
// p.out = the mixture of experts for x. The router reads x, too.
void experts(const LayerPass& at, const ExpertRouter& router, const Experts& experts, Gate f,
             Rows x);
// p.out = the shared expert's output for x.
void shared_expert(const LayerPass& at, const SharedExpert& shared, Gate f, Rows x);
// p.out = the mixture of experts for x, plus the shared expert's output for x: one addition.
void experts(const LayerPass& at, const ExpertRouter& router, const Experts& experts,
             const SharedExpert& shared, Gate f, Rows x);

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

inline SharedExpert load_shared_expert(WeightLoader& w, const ModelConfig& c, const std::string& at,
                                       const std::string& gate) {
  const int64_t width = c.experts.shared, hidden = c.hidden_size;
  SharedExpert s = {
      w.linear("mlp", {{at + "gate_proj", width}, {at + "up_proj", width}}, hidden, false),
      w.linear("mlp", {{at + "down_proj", hidden}}, width, false)};
  if (!gate.empty()) s.gate = w.exact("mlp", {gate, 1}, hidden, false);
  return s;
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
  const RouterSettings settings = {c.experts.rule,
                                   logits.width,
                                   chosen.width,
                                   router.bias.empty() ? nullptr : router.bias.data(),
                                   router.scale.empty() ? nullptr : router.scale.data(),
                                   static_cast<float>(c.experts.factor)};
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

inline void shared_expert(const LayerPass& at, const SharedExpert& shared, Gate f, Rows x) {
  const Pass& p = at.p;
  gated_mlp(at, shared.gate_up, shared.down, f, x);
  if (shared.gate.weight.rows() == 0) return;
  // The memory of the router's logits is free by now, because route() has read them.
  const Rows gates = p.scratch->experts.logits.rows(0, x.count).columns(0, 1);
  Pass exact = p;
  exact.contract = Contract::f32;
  linear(at.t, exact, shared.gate, x, gates);
  detail::each_row(at.t, x.count, [&](size_t r) {
    float gate = 0;
    p.kernels->sigmoid(gates.row(r), &gate, 1);
    p.kernels->scale(p.out.row(r), gate, p.out.width);
  });
}

inline void experts(const LayerPass& at, const ExpertRouter& router, const Experts& experts,
                    const SharedExpert& shared, Gate f, Rows x) {
  const Rows mixture = at.p.scratch->experts.out.rows(0, x.count);
  route(at, router, x);
  mix_experts(at, experts, f, x, mixture);
  shared_expert(at, shared, f, x);
  add(at.t, at.p, at.p.out, mixture);
}

}  // namespace stet
