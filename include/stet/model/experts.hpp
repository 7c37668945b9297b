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

#include <string>

#include "stet/api.h"
#include "stet/model/expert_rows.hpp"
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

}  // namespace stet

#ifndef STET_SEPARATE
#include "stet/model/experts-inl.hpp"
#endif
