// Routers of mixtures of experts: they choose the experts of a token and weigh them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "stet/api.h"

namespace stet {

struct Kernels;

// The weights that a router gives to the experts that it chooses.
enum class RouterRule : uint8_t {
  softmax,            // a softmax over all experts
  softmax_divided,    // the same, the chosen weights divided by their sum
  softmax_of_chosen,  // a softmax over the chosen experts alone
  sigmoid,            // sigmoids; experts are chosen by these plus a bias
  sigmoid_divided,    // the same, the weights divided by their sum plus 1e-6
};

constexpr size_t kMostExperts = 1024;  // experts of a layer

struct RouterSettings {
  RouterRule rule = RouterRule::softmax;
  size_t experts = 0, chosen = 0;  // 1 <= chosen <= experts <= kMostExperts
  const float* bias = nullptr;     // [experts], for the sigmoid rules; null: no bias
  const float* scale = nullptr;    // [experts]: multiplies the weights; null: nothing
  float factor = 1;                // multiplies all weights, after `scale`
};

// Chooses the experts with the largest scores. A score is the logit or, under the sigmoid rules,
// the sigmoid plus the bias; of equal scores the lower expert comes first. Writes weights[experts],
// which are +0 for experts that are not chosen, and the chosen experts, best first, to
// chosen[chosen].
//
// Sums of weights run over ascending experts. The softmax is that of the kernel table, over all
// logits or over those of the chosen experts in ascending order.
//
// Returns false if a logit is not finite. Then all weights are +0.
STET_API bool route(const Kernels& kernels, const RouterSettings& settings, const float* logits,
                    float* weights, float* chosen);
// Returns the place of an expert among those that route() chose, or `count` if it is none of them.
STET_API size_t place_of_expert(const float* chosen, size_t count, size_t expert);

// Rows grouped by expert. A slot is one row of one expert.
struct ExpertSlots {
  uint32_t* experts;  // [active]: the experts that have a row, ascending
  uint32_t* first;    // [active + 1]: the first slot of each of these experts, then the total
  uint32_t* rows;     // [slots]: ascending within each expert
  float* weights;     // [slots]
};
// Groups `rows` rows of weights[experts], `stride` apart. A row belongs to each expert whose weight
// is not zero. Returns the number of experts that have a row.
STET_API size_t group_by_expert(const float* weights, size_t stride, size_t rows, size_t experts,
                                const ExpertSlots& to);

}  // namespace stet
