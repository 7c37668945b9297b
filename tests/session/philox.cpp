#include <gtest/gtest.h>

#include "stet/sampling/philox.hpp"

namespace stet::test::philox_tests {
namespace {

using Words = std::array<uint32_t, 4>;

// The known-answer vectors that the authors publish with Random123.
TEST(Philox, GivesTheKnownAnswersOfItsAuthors) {
  EXPECT_EQ(stet::philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(stet::philox4x32({ones, ones, ones, ones}, {ones, ones}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      stet::philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformIsTheUpper53BitsOfTheFirstTwoWords) {
  // 0xe169c58d6627e8d5 >> 11
  EXPECT_EQ(stet::philox_uniform(0, 0), static_cast<double>(0xe169c58d6627e8d5u >> 11) * 0x1p-53);
}

TEST(Philox, UniformUsesBothHalvesOfSeedAndPosition) {
  const uint64_t seed = 0x299f31d0a4093822, position = 0x85a308d3243f6a88;
  const Words w = stet::philox4x32({0x243f6a88, 0x85a308d3, 0, 0}, {0xa4093822, 0x299f31d0});
  EXPECT_EQ(stet::philox_uniform(seed, position),
            static_cast<double>((uint64_t{w[1]} << 32 | w[0]) >> 11) * 0x1p-53);
}

TEST(Philox, UniformStaysBelowOneWithMeanOneHalf) {
  const int n = 100000;
  double sum = 0;
  for (int i = 0; i < n; ++i) {
    const double u = stet::philox_uniform(7, i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
  }
  EXPECT_NEAR(sum / n, 0.5, 5 / 1095.4);  // five standard deviations: 5 / sqrt(12 n)
}

}  // namespace
}  // namespace stet::test::philox_tests
