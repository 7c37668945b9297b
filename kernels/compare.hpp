// Comparison of keys, values and logits, number by number.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "stet/snapshot/compare.hpp"

namespace stet {

// Returns the slots of a block that belong to the first `positions` positions, as bits.
inline uint64_t positions_of_block(int64_t block, int64_t positions) {
  const int64_t there = positions - block * kBlockPositions;
  return there >= kBlockPositions ? ~uint64_t{0} : there <= 0 ? 0 : (uint64_t{1} << there) - 1;
}

struct KvDifferences {
  std::optional<Difference> key, value;  // first differences
  std::vector<Comparison::Layer> layers;
};

// Compares blocks begin .. end-1 of two caches, which may differ only in type. Considers positions
// that both have and neither has pruned. Differences within `tolerance` (see first_difference)
// count only for the deviations.
KvDifferences compare_kv(const KvCache& a, const KvCache& b, double tolerance, int64_t begin = 0,
                         int64_t end = INT64_MAX);
// Returns the earlier difference: by position, then layer, then key before value.
std::optional<Difference> first_of(const KvDifferences& kv);

// Returns the first difference of two logits vectors of equal size.
std::optional<Difference> first_logit(std::span<const float> a, std::span<const float> b,
                                      double tolerance);

// Returns the sum over p log(p / q), where p and q are the softmax of `a` and of `b`. Both have the
// same size.
double divergence(std::span<const float> a, std::span<const float> b);

}  // namespace stet
