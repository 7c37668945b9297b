#include "stet/kernels/router.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "stet/kernels/kernels.hpp"
#include "stet/kernels/numbers.hpp"

namespace stet {
namespace {

// Finds the largest scores, best first. Of equal scores the earlier one comes first.
void choose_largest(const float* scores, size_t n, size_t most, uint32_t* chosen) {
  size_t count = 0;
  for (size_t i = 0; i < n; ++i) {
    if (count == most && !(scores[i] > scores[chosen[most - 1]])) continue;
    size_t at = count < most ? count++ : most - 1;
    for (; at > 0 && scores[i] > scores[chosen[at - 1]]; --at) chosen[at] = chosen[at - 1];
    chosen[at] = static_cast<uint32_t>(i);
  }
}

void divide_by_sum(std::span<const uint32_t> ascending, float more, float* weights) {
  float sum = 0;
  for (const uint32_t e : ascending) sum += weights[e];
  sum += more;
  for (const uint32_t e : ascending) weights[e] /= sum;
}

}  // namespace

bool route(const Kernels& kernels, const RouterSettings& s, const float* logits, float* weights,
           float* chosen) {
  std::fill_n(weights, s.experts, 0.0f);
  if (find_not_finite({logits, s.experts})) {
    for (size_t i = 0; i < s.chosen; ++i) chosen[i] = static_cast<float>(i);
    return false;
  }
  const bool sigmoid = s.rule == RouterRule::sigmoid || s.rule == RouterRule::sigmoid_divided;
  std::array<float, kMostExperts> values, scores;
  std::memcpy(values.data(), logits, s.experts * sizeof(float));
  if (sigmoid) kernels.sigmoid(logits, values.data(), s.experts);
  std::copy_n(values.data(), s.experts, scores.data());
  for (size_t i = 0; s.bias != nullptr && i < s.experts; ++i) scores[i] += s.bias[i];
  std::array<uint32_t, kMostExperts> ids;
  const std::span<uint32_t> some(ids.data(), s.chosen);
  choose_largest(scores.data(), s.experts, s.chosen, ids.data());
  for (size_t i = 0; i < s.chosen; ++i) chosen[i] = static_cast<float>(ids[i]);
  std::ranges::sort(some);

  if (s.rule == RouterRule::softmax_of_chosen) {
    for (size_t i = 0; i < s.chosen; ++i) scores[i] = values[ids[i]];
    kernels.softmax(scores.data(), s.chosen);
    for (size_t i = 0; i < s.chosen; ++i) values[ids[i]] = scores[i];
  } else if (!sigmoid) {
    kernels.softmax(values.data(), s.experts);
  }
  if (s.rule == RouterRule::softmax_divided) divide_by_sum(some, 0, values.data());
  if (s.rule == RouterRule::sigmoid_divided) divide_by_sum(some, 1e-6f, values.data());
  for (const uint32_t e : some) {
    weights[e] = s.scale == nullptr ? values[e] : values[e] * s.scale[e];
    if (s.factor != 1) weights[e] *= s.factor;
  }
  return true;
}

size_t place_of_expert(const float* chosen, size_t count, size_t expert) {
  return static_cast<size_t>(std::find(chosen, chosen + count, static_cast<float>(expert)) -
                             chosen);
}

size_t group_by_expert(const float* weights, size_t stride, size_t rows, size_t experts,
                       const ExpertSlots& to) {
  std::array<uint32_t, kMostExperts> next = {};
  for (size_t r = 0; r < rows; ++r) {
    for (size_t e = 0; e < experts; ++e) next[e] += weights[r * stride + e] != 0 ? 1 : 0;
  }
  size_t active = 0;
  uint32_t slots = 0;
  for (size_t e = 0; e < experts; ++e) {
    const uint32_t count = next[e];
    next[e] = slots;
    if (count == 0) continue;
    to.experts[active] = static_cast<uint32_t>(e);
    to.first[active++] = slots;
    slots += count;
  }
  to.first[active] = slots;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t e = 0; e < experts; ++e) {
      const float weight = weights[r * stride + e];
      if (!(weight != 0)) continue;
      to.rows[next[e]] = static_cast<uint32_t>(r);
      to.weights[next[e]++] = weight;
    }
  }
  return active;
}

}  // namespace stet
