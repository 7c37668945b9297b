// Which experts a token goes to, and by which weights: routers of mixtures of experts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stet/api.h"

namespace stet {

struct Kernels;

// How a router weighs the experts that it chooses. The names say what the weights are.
enum class RouterRule : uint8_t {
  softmax,            // those of a softmax over all experts
  softmax_divided,    // the same, divided by their sum
  softmax_of_chosen,  // a softmax over the chosen experts alone
  sigmoid,            // sigmoids; experts are chosen by these plus a bias
  sigmoid_divided,    // the same, divided by their sum plus 1e-6
};

constexpr size_t kMostExperts = 1024;  // of a layer

struct RouterSettings {
  RouterRule rule = RouterRule::softmax;
  size_t experts = 0, chosen = 0;  // 1 <= chosen <= experts <= kMostExperts
  const float* bias = nullptr;     // [experts], of the sigmoid rules; null: none
  const float* scale = nullptr;    // [experts]: what each expert's weight is multiplied by, or null
};

// Chooses the `chosen` experts of largest score (of the sigmoid rules: sigmoid plus bias; else the
// logit); of equal ones that of the lowest number comes first. Writes weights[experts], +0 where an
// expert is not chosen, and the chosen numbers, best first, to chosen[chosen]. Sums of weights are
// taken in ascending number; a softmax is that of the kernel table, over all logits or over the
// chosen ones in ascending number. Returns false, all weights +0 and the first experts chosen, where
// a logit is not finite.
STET_API bool route(const Kernels& kernels, const RouterSettings& settings, const float* logits,
                    float* weights, float* chosen);

// Rows by expert. A slot is one row of one expert.
struct ExpertSlots {
  uint32_t* experts;  // [active] of those that have a row, ascending
  uint32_t* first;    // [active + 1] the first slot of each of them, then their number
  uint32_t* rows;     // [slots] ascending within an expert
  float* weights;     // [slots]
};
// Groups `rows` rows of weights[experts], `stride` apart: a row belongs to each expert whose weight
// is not zero. Returns how many experts have a row.
STET_API size_t group_by_expert(const float* weights, size_t stride, size_t rows, size_t experts,
                                const ExpertSlots& to);

}  // namespace stet
