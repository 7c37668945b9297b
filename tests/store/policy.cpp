// Fetch or compute: predictions follow the formulas, the cut is the best of all cuts, and
// measurements replace assumptions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "stet/kv/kv_block.hpp"
#include "stet/store/policy.hpp"

namespace stet::test::policy_tests {
namespace {

static_assert(kPolicyBlock == kBlockPositions);

// Returns the cost of the best cut, found by trying each.
double best_cut(const FetchPolicy& policy, int64_t first, int64_t blocks, uint64_t bytes) {
  double best = INFINITY;
  for (int64_t k = 0; k <= blocks; ++k) {
    const double computing = k == 0 ? 0 : policy.compute_seconds(first, k),
                 fetching = policy.fetch_seconds(static_cast<uint64_t>(blocks - k) * bytes);
    best = std::min(best, std::max(computing, fetching));
  }
  return best;
}

TEST(StorePolicy, PredictionsFollowTheFormulas) {
  const FetchPolicy p(
      {.token_seconds = 0.5, .growth = 64, .latency_seconds = 2, .byte_seconds = 0.25});
  // 64 tokens at positions 64 .. 127: each takes 1 + p / 64, on average 1 + 95.5 / 64.
  EXPECT_DOUBLE_EQ(p.compute_seconds(1, 1), 0.5 * 64 * (1 + 95.5 / 64));
  EXPECT_DOUBLE_EQ(p.compute_seconds(0, 2), p.compute_seconds(0, 1) + p.compute_seconds(1, 1));
  EXPECT_EQ(p.fetch_seconds(0), 0);
  EXPECT_EQ(p.fetch_seconds(8), 4);
  EXPECT_EQ(p.max_wait_seconds(1), p.compute_seconds(1, 1));
  EXPECT_EQ(FetchPolicy({.token_seconds = 1e-9}).max_wait_seconds(0), 0.25);
}

TEST(StorePolicy, CutsWhereItIsFastest) {
  std::mt19937_64 random(26);
  const auto around = [&](double middle) {
    return middle * std::exp(std::uniform_real_distribution<double>(-4, 4)(random));
  };
  for (int i = 0; i < 20000; ++i) {
    const FetchPolicy p({.token_seconds = around(0.005),
                         .growth = around(4096),
                         .latency_seconds = around(0.01),
                         .byte_seconds = around(1e-7),
                         .least_gain = 0});
    const int64_t first = static_cast<int64_t>(random() % 500),
                  blocks = static_cast<int64_t>(random() % 80);
    const uint64_t bytes = 1 + random() % (4 << 20);
    const FetchPlan plan = p.plan(first, blocks, bytes);
    ASSERT_GE(plan.computed, 0);
    ASSERT_LE(plan.computed, blocks);
    ASSERT_DOUBLE_EQ(plan.seconds, best_cut(p, first, blocks, bytes));
  }
}

TEST(StorePolicy, IsNeverSlowerThanTheBetterOfBothAlone) {
  const FetchPolicy p({.token_seconds = 0.001,
                       .growth = 1e9,
                       .latency_seconds = 0,
                       .byte_seconds = 0.064 / (1 << 20),
                       .least_gain = 0});  // fetching and computing take the same time
  const FetchPlan plan = p.plan(0, 10, 1 << 20);
  EXPECT_EQ(plan.computed, 5);
  EXPECT_NEAR(plan.seconds, 5 * 0.064, 1e-6);
}

// Computing half of the tokens saves 0.32 s, as above.
TEST(StorePolicy, ComputesForAGainOnly) {
  for (const double least : {0.3, 0.35}) {
    const FetchPolicy p({.token_seconds = 0.001,
                         .growth = 1e9,
                         .latency_seconds = 0,
                         .byte_seconds = 0.064 / (1 << 20),
                         .least_gain = least});
    EXPECT_EQ(p.plan(0, 10, 1 << 20).computed, least < 0.32 ? 5 : 0);
  }
}

TEST(StorePolicy, RequestsAsMuchAsArrivesWhileABlockIsComputed) {
  const FetchCosts costs{
      .token_seconds = 1.0 / 64, .growth = 1e9, .latency_seconds = 0.01, .byte_seconds = 0.125};
  EXPECT_EQ(FetchPolicy(costs).batch(0, 32, 1), 8);
  EXPECT_EQ(FetchPolicy(costs).batch(0, 4, 1), 4);
  EXPECT_EQ(FetchPolicy(costs).batch(0, 32, 100), 1);
  FetchCosts far = costs;
  far.latency_seconds = 0.5;
  EXPECT_EQ(FetchPolicy(far).batch(0, 32, 1), 16);
}

TEST(StorePolicy, FetchesAllFromFastStoresAndNothingFromSlowOnes) {
  const FetchPolicy fast({.token_seconds = 0.02, .latency_seconds = 1e-4, .byte_seconds = 1e-9});
  EXPECT_EQ(fast.plan(0, 64, 4 << 20).computed, 0);
  const FetchPolicy slow({.token_seconds = 1e-5, .latency_seconds = 0.2, .byte_seconds = 1e-6});
  EXPECT_EQ(slow.plan(0, 64, 4 << 20).computed, 64);
  EXPECT_EQ(slow.plan(0, 0, 4 << 20).computed, 0);
  EXPECT_EQ(slow.plan(0, 0, 4 << 20).seconds, 0);
}

TEST(StorePolicy, CrossesOverWhereBothTakeEquallyLong) {
  const FetchPolicy p({.token_seconds = 0.01, .growth = 16384, .latency_seconds = 0.05});
  const double rate = p.break_even_rate(3, 20, 1 << 20);
  const FetchPolicy there(
      {.token_seconds = 0.01, .growth = 16384, .latency_seconds = 0.05, .byte_seconds = 1 / rate});
  EXPECT_NEAR(there.fetch_seconds(20 << 20), there.compute_seconds(3, 20), 1e-9);
  const FetchPolicy far({.token_seconds = 1e-6, .latency_seconds = 1});
  EXPECT_EQ(far.break_even_rate(0, 1, 4096), 0);
}

TEST(StorePolicy, MeasurementsReplaceAssumptions) {
  FetchPolicy p({.token_seconds = 9, .growth = 64, .latency_seconds = 9, .byte_seconds = 9});
  EXPECT_FALSE(p.has_compute_cost());
  EXPECT_FALSE(p.has_fetch_cost());
  p.computed(64, 64, 0.5 * 64 * (1 + 95.5 / 64));
  p.answered(0.25);
  p.fetched(8, 4.25);
  EXPECT_TRUE(p.has_compute_cost());
  EXPECT_TRUE(p.has_fetch_cost());
  EXPECT_DOUBLE_EQ(p.costs().token_seconds, 0.5);
  EXPECT_EQ(p.costs().latency_seconds, 0.25);
  EXPECT_EQ(p.costs().byte_seconds, 0.5);
  // Empty samples, and a clock that stands still or goes back, teach nothing.
  p.computed(0, 0, 1);
  p.computed(0, 64, 0);
  p.computed(0, 64, -1);
  p.fetched(0, 1);
  p.fetched(8, -1);
  p.answered(-1);
  EXPECT_DOUBLE_EQ(p.costs().token_seconds, 0.5);
  EXPECT_EQ(p.costs().byte_seconds, 0.5);
  p.assume(7, 128);  // sets the growth, but not the measured time
  EXPECT_DOUBLE_EQ(p.costs().token_seconds, 0.5);
  EXPECT_EQ(p.costs().growth, 128);
}

TEST(StorePolicy, FollowsAStoreThatBecomesSlow) {
  FetchPolicy p({.token_seconds = 0.01});
  for (int i = 0; i < 100; ++i) p.fetched(4 << 20, 0.01);
  EXPECT_EQ(p.plan(0, 32, 4 << 20).computed, 0);
  for (int i = 0; i < 16; ++i) p.fetched(4 << 20, 10);
  EXPECT_GT(p.plan(0, 32, 4 << 20).computed, 24);
  for (int i = 0; i < 64; ++i) p.fetched(4 << 20, 0.01);
  EXPECT_LT(p.plan(0, 32, 4 << 20).computed, 3);
}

TEST(StorePolicy, CompressesForASlowWireOnly) {
  FetchPolicy p({.byte_seconds = 1e-9,
                 .write_byte_seconds = 1e-9,
                 .encode_seconds = 1e-8,
                 .decode_seconds = 4e-9,
                 .ratio = 0.8});
  EXPECT_FALSE(p.worth_encoding());
  p.fetched(1 << 20, 1);
  EXPECT_TRUE(p.worth_encoding());
  FetchPolicy w({.byte_seconds = 1e-9, .encode_seconds = 1e-8, .ratio = 0.8});
  w.written(1 << 20, 1);
  EXPECT_TRUE(w.worth_encoding());
  p.encoded(1 << 20, 1 << 20, 0.01);  // compression gains nothing
  EXPECT_FALSE(p.worth_encoding());
}

}  // namespace
}  // namespace stet::test::policy_tests
