// Implements experts.hpp.
#pragma once

#include <algorithm>
#include <string>

#include "stet/model/expert_tiles.hpp"
#include "stet/model/expert_vectors.hpp"
#include "stet/model/experts.hpp"

namespace stet {

STET_INL Experts load_experts(WeightLoader& w, const ModelConfig& c, const std::string& at,
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

STET_INL SharedExpert load_shared_expert(WeightLoader& w, const ModelConfig& c,
                                         const std::string& at, const std::string& gate) {
  const int64_t width = c.experts.shared, hidden = c.hidden_size;
  SharedExpert s = {
      w.linear("mlp", {{at + "gate_proj", width}, {at + "up_proj", width}}, hidden, false),
      w.linear("mlp", {{at + "down_proj", hidden}}, width, false)};
  if (!gate.empty()) s.gate = w.exact("mlp", {gate, 1}, hidden, false);
  return s;
}

STET_INL void route(const LayerPass& at, const ExpertRouter& router, Rows x) {
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

STET_INL void mix_experts(const LayerPass& at, const Experts& experts, Gate f, Rows x, Rows y) {
  const size_t step = detail::expert_rows_at_once(at);
  for (size_t row = 0; row < x.count; row += step) {
    const size_t n = std::min(step, x.count - row);
    const detail::ExpertRows rows = detail::expert_rows(at, row, n);
    const Rows from = x.rows(row, n), to = y.rows(row, n);
    detail::group_rows(at, rows);
    if (n <= kGemvRows && rows.slots <= detail::few_slots(at.config.experts)) {
      detail::few_gates(at, experts, f, rows, from);
      detail::copy_hidden(at, rows);
      detail::with_vectors(at.p, experts.down, [&at, &experts, &rows, &to](const auto& v) {
        detail::few_downs(at, v, experts, rows, to);
      });
      continue;
    }
    detail::many_gates(at, experts, f, rows, from);
    detail::copy_hidden(at, rows);
    detail::many_downs(at, experts, rows, to);
  }
}

STET_INL void experts(const LayerPass& at, const ExpertRouter& router, const Experts& experts,
                      Gate f, Rows x) {
  route(at, router, x);
  mix_experts(at, experts, f, x, at.p.out);
}

STET_INL void shared_expert(const LayerPass& at, const SharedExpert& shared, Gate f, Rows x) {
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

STET_INL void experts(const LayerPass& at, const ExpertRouter& router, const Experts& experts,
                      const SharedExpert& shared, Gate f, Rows x) {
  const Rows mixture = at.p.scratch->experts.out.rows(0, x.count);
  route(at, router, x);
  mix_experts(at, experts, f, x, mixture);
  shared_expert(at, shared, f, x);
  add(at.t, at.p, at.p.out, mixture);
}

}  // namespace stet
