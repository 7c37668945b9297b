// Comparing keys, values and logits, number by number.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "stet/snapshot/compare.hpp"

namespace stet {

// The slots of a block that the first `positions` positions take, as bits.
inline uint64_t positions_of_block(int64_t block, int64_t positions) {
  const int64_t there = positions - block * kBlockPositions;
  return there >= kBlockPositions ? ~uint64_t{0} : there <= 0 ? 0 : (uint64_t{1} << there) - 1;
}

struct KvDifferences {
  std::optional<Difference> key, value;  // the first ones
  std::vector<Comparison::Layer> layers;
};

// Of positions that both have and none has pruned; the caches may differ in type alone. Differences
// within `tolerance` (see first_difference) count for the deviations only. Blocks begin .. end-1.
KvDifferences compare_kv(const KvCache& a, const KvCache& b, double tolerance, int64_t begin = 0,
                         int64_t end = INT64_MAX);
// The one that comes first: by position, then layer, key before value.
std::optional<Difference> first_of(const KvDifferences& kv);

// Of as many logits.
std::optional<Difference> first_logit(std::span<const float> a, std::span<const float> b,
                                      double tolerance);

// Sum over p log(p / q), p and q being the softmax of `a` and of `b`, which are as many.
double divergence(std::span<const float> a, std::span<const float> b);

}  // namespace stet
