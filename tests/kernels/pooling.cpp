// Pooling of rows into one embedding. The expected numbers are computed one at a time, in the order
// that the header documents.
#include "stet/kernels/pooling.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace stet::test::pooling_tests {
namespace {

std::vector<float> some_row(size_t n, uint32_t seed) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i)
    x[i] = static_cast<float>(static_cast<int>((i * 7919 + seed * 104729) % 2003) - 1001) / 97.0f;
  return x;
}

double length_of(const std::vector<float>& x) {
  double lanes[16] = {};
  for (size_t i = 0; i < x.size(); ++i) lanes[i % 16] += double{x[i]} * double{x[i]};
  for (const size_t step : {8, 4, 2, 1}) {
    for (size_t i = 0; i < step; ++i) lanes[i] = lanes[i] + lanes[i + step];
  }
  return std::sqrt(lanes[0]);
}

TEST(Pooling, UnitLengthIsThatOfTheTree) {
  for (const size_t n : {1, 2, 15, 16, 17, 31, 64, 1000, 1153}) {
    std::vector<float> x = some_row(n, static_cast<uint32_t>(n));
    const double length = length_of(x);
    std::vector<float> expected;
    for (const float value : x) expected.push_back(static_cast<float>(double{value} / length));
    make_unit_length(x.data(), n);
    EXPECT_EQ(x, expected) << n;
    EXPECT_NEAR(length_of(x), 1, 1e-6) << n;
  }
}

TEST(Pooling, LargeAndSmallNumbersKeepTheirLength) {
  const float largest = std::numeric_limits<float>::max(),
              smallest = std::numeric_limits<float>::denorm_min();
  for (const float value : {largest, smallest, -largest}) {
    std::vector<float> x(4, value);
    make_unit_length(x.data(), x.size());
    EXPECT_EQ(x, std::vector<float>(4, value < 0 ? -0.5f : 0.5f));
  }
  std::vector<float> zeros(20, 0);
  make_unit_length(zeros.data(), zeros.size());
  EXPECT_EQ(zeros, std::vector<float>(20, 0));
}

TEST(Pooling, TheMeanIsAChainInDoubleOverTheRows) {
  constexpr size_t kWidth = 37, kRows = 11;
  std::vector<double> sum(kWidth, 0), expected(kWidth, 0);
  for (uint32_t r = 0; r < kRows; ++r) {
    const std::vector<float> row = some_row(kWidth, r);
    add_row(row.data(), sum.data(), kWidth);
    for (size_t i = 0; i < kWidth; ++i) expected[i] += double{row[i]};
  }
  std::vector<float> mean(kWidth);
  mean_of_rows(sum.data(), kRows, mean.data(), kWidth);
  for (size_t i = 0; i < kWidth; ++i)
    EXPECT_EQ(mean[i], static_cast<float>(expected[i] / double{kRows})) << i;
}

}  // namespace
}  // namespace stet::test::pooling_tests
