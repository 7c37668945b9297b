// Linear layers of contract bf16: every instruction set gives the bits of the contract and touches
// only its operands.
#include <algorithm>
#include <limits>

#include "tests/support/kernel_testing.hpp"

namespace stet::test::kernels_of_pairs_tests {
namespace {

class KernelOfPairs : public EachIsa {};

INSTANTIATE_TEST_SUITE_P(All, KernelOfPairs, testing::ValuesIn(isa_names()),
                         [](const auto& info) { return info.param; });

// Packed bfloat16 weights from their bits, [16 * blocks][k].
struct PairWeights {
  size_t blocks, k;
  Fenced<uint16_t> packed;
  std::vector<float> worth;

  template <class Bits>
  PairWeights(size_t n, size_t columns, Bits bits)
      : blocks(n), k(columns), packed(16 * n * columns), worth(16 * n * columns) {
    for (size_t row = 0; row < 16 * blocks; ++row) {
      for (size_t i = 0; i < k; ++i) {
        const uint16_t b = bits();
        packed[row / 16 * 16 * k + i / 2 * 32 + row % 16 * 2 + i % 2] = b;
        worth[row * k + i] = float_of(static_cast<uint32_t>(b) << 16);
      }
    }
  }
  std::vector<float> times(const float* x) const {
    std::vector<float> y(16 * blocks);
    for (size_t row = 0; row < y.size(); ++row)
      y[row] = plain_dot_pairs(worth.data() + row * k, x, k);
    return y;
  }
};

// Returns a float32 of random sign and fraction whose exponent is within `spread` of `middle`.
float near(Stream& s, int middle, int spread) {
  const uint64_t random = s.next();
  const int exponent =
      middle + static_cast<int>(random % static_cast<uint64_t>(2 * spread + 1)) - spread;
  const uint32_t biased =
      static_cast<uint32_t>(std::clamp(exponent + 127, 0, 254));  // 0: a denormal
  return float_of(static_cast<uint32_t>(random >> 32 & 0x807FFFFFu) | biased << 23);
}
uint16_t high_half(float x) { return static_cast<uint16_t>(bits_of(x) >> 16); }

// Computes the product of pairs alone and as the last of several rows, and expects the same bits.
std::vector<float> product_of_pairs(const Kernels& k, const PairWeights& w,
                                    const std::vector<float>& values) {
  const size_t ldx = w.k / 2 + 1, width = 16 * w.blocks, ldy = width + 16;
  const std::vector<float> others(values.rbegin(), values.rend());
  std::vector<float> alone;
  for (size_t rows = 1; rows <= kGemvRows; ++rows) {
    const Fenced<float> y(rows * ldy);
    const Fenced<uint32_t> pairs(rows * ldx);
    for (size_t r = 0; r < rows; ++r)
      k.round_pairs((r + 1 == rows ? values : others).data(), w.k, pairs.data() + r * ldx);
    k.gemv_pairs(w.packed.data(), w.blocks, w.k, pairs.data(), ldx, y.data(), ldy,
                 static_cast<int>(rows));
    EXPECT_TRUE(y.untouched() && pairs.untouched());
    const std::span<const float> last = y.span().subspan((rows - 1) * ldy, width);
    if (rows == 1) alone.assign(last.begin(), last.end());
    EXPECT_TRUE(equal_bits(last, alone)) << rows << " rows";
  }
  return alone;
}

// Inputs are all upper halves of a float32, each with lower halves at and around the rounding
// threshold.
TEST_P(KernelOfPairs, PairsAreRoundedToNearestEven) {
  std::vector<float> values;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu})
      values.push_back(float_of(high << 16 | low));
  }
  const Fenced<float> x(values);
  const Fenced<uint32_t> pairs(values.size() / 2);
  k.round_pairs(x.data(), values.size(), pairs.data());
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t got = (i % 2 == 0 ? pairs[i / 2] << 16 : pairs[i / 2] & 0xFFFF0000u);
    ASSERT_TRUE(
        same_bits(float_of(got), float_of(static_cast<uint32_t>(plain_bf16(values[i])) << 16)))
        << std::hex << bits_of(values[i]) << " gave " << got;
  }
  for (size_t n : {2, 6, 30, 34, 66}) {
    const Fenced<float> some(numbers(n, n, Fill::special));
    const Fenced<uint32_t> out(n / 2);
    k.round_pairs(some.data(), n, out.data());
    ASSERT_TRUE(out.untouched());
    for (size_t i = 0; i < n; ++i) {
      const uint32_t half = out[i / 2] >> (i % 2 * 16) & 0xFFFFu;
      ASSERT_TRUE(same_bits(float_of(half << 16),
                            float_of(static_cast<uint32_t>(plain_bf16(some[i])) << 16)))
          << i;
    }
  }
}

TEST_P(KernelOfPairs, PairsMatrixVectorIsOneChainPerOutput) {
  for (size_t blocks : {1, 2, 3, 4, 5, 7, 8, 9}) {
    for (size_t depth : {2, 4, 14, 16, 18, 62, 64, 66, 128, 510}) {
      Stream s(depth * 31 + blocks);
      const PairWeights ordinary(blocks, depth, [&] { return high_half(s.wide()); });
      const std::vector<float> x = numbers(depth, depth, Fill::wide);
      ASSERT_TRUE(equal_bits(product_of_pairs(k, ordinary, x), ordinary.times(x.data())))
          << blocks << " blocks, k " << depth;
      const PairWeights any(blocks, depth, [&] { return static_cast<uint16_t>(s.next()); });
      const std::vector<float> special =
          numbers(depth, depth, depth <= 4 ? Fill::special : Fill::wide);
      ASSERT_TRUE(equal_bits(product_of_pairs(k, any, special), any.times(special.data())))
          << blocks << " blocks, k " << depth;
    }
  }
}

TEST_P(KernelOfPairs, PairsWithOneSpecialInput) {
  Stream s(5);
  const size_t depth = 34;
  const PairWeights w(3, depth, [&] { return high_half(s.wide()); });
  for (float special :
       {kInf, -kInf, kNan, 0x1p-149f, -0x1.fffffcp-127f, -0.0f, 0x1.fffffep127f, 0x1.fep127f}) {
    for (size_t at = 0; at < depth; ++at) {
      std::vector<float> x = numbers(depth, 77);
      x[at] = special;
      ASSERT_TRUE(equal_bits(product_of_pairs(k, w, x), w.times(x.data())))
          << special << " at " << at;
    }
  }
}

// Chains near 2^-126: sums that cancel, that are flushed, or that round up to the least normal
// number. In many of them flushing changes the result.
TEST_P(KernelOfPairs, PairsFlushDenormals) {
  Stream s(1);
  size_t changed = 0;
  for (int round = 0; round < 400; ++round) {
    const int middle = static_cast<int>(s.next() % 100) - 110,
              spread = 1 + static_cast<int>(s.next() % 8);
    const PairWeights w(4, 6, [&] { return high_half(near(s, middle, spread)); });
    std::vector<float> x(6);
    for (float& value : x) value = near(s, -126 - middle, spread);
    const std::vector<float> got = product_of_pairs(k, w, x);
    ASSERT_TRUE(equal_bits(got, w.times(x.data()))) << "round " << round;
    for (float& value : x) value = static_cast<float>(exact_bf16(plain_bf16(value)));
    for (size_t row = 0; row < got.size(); ++row)
      changed += !same_bits(got[row], plain_dot(w.worth.data() + row * 6, x.data(), 6));
  }
  EXPECT_GT(changed, 5000u);  // of 25600
}

// Each case tests one rule. It has the weights and inputs of a pair, w1 x1 first and then w0 x0.
TEST_P(KernelOfPairs, PairsAtTheEdges) {
  struct Case {
    float w1, x1, w0, x0, expected;
  };
  constexpr float kLeast = 0x1p-126f;
  const Case cases[] = {
      {0x1p-63f, 0x1p-63f, 0, 0, kLeast},
      {0x1p-63f, 0x1p-64f, 0, 0, 0},                       // the result is flushed
      {-0x1p-63f, 0x1p-64f, -0.0f, 1, -0.0f},              // the result is flushed to -0
      {0x1p-63f, 0x1p-64f, 0x1p-63f, 0x1p-64f, 0},         // a flushed product adds nothing
      {0x1p-130f, 0x1p100f, 0, 0, 0},                      // a denormal weight counts as zero
      {0x1p100f, 0x1p-130f, 0, 0, 0},                      // a denormal input counts as zero
      {0x1p-130f, kInf, 0, 0, kNan},                       // 0 * inf
      {0x1p-63f, 0x1p-63f, -0x1p-75f, 0x1p-76f, kLeast},   // 2^-126 - 2^-151: a tie, up to even
      {0x1p-63f, 0x1p-63f, -0x1p-80f, 0x1p-120f, kLeast},  // tiny before rounding only
      {0x1p-63f, 0x1p-63f, -0x1.02p-75f, 0x1p-76f, 0},     // tiny after rounding to 24 bits
      {-0x1p-63f, 0x1p-63f, 0x1.02p-75f, 0x1p-76f, -0.0f},
      {-0x1p-63f, 0x1p-63f, 0x1p-75f, 0x1p-76f, -kLeast},
      {1, kLeast, -0x1.02p-25f, kLeast, 0},  // a small input; next: a small weight
      {1, kLeast, -kLeast, 0x1.02p-25f, 0},
      {0x1p-50f, 0x1.8p-76f, -0x1p-63f, 0x1p-63f, 0},  // cancels below the least normal number
      {1, 1, -1, 1, 0},                                // gives +0
      {0x1p100f, 0x1p100f, 1, 1, kInf},
      {0x1p100f, 0x1p100f, -0x1p100f, 0x1p100f, kInf},  // infinity minus an exact product
      {kInf, 1, -1, kInf, kNan},
      {1, 1, 0x1p-12f, 0x1p-12f, 1},  // a tie between 1 and its successor
      {1.0078125f, 1.0078125f, 0x1p-12f, 0x1p-12f, 0x1.0404p+0f + 0x1p-24f},
  };
  for (const Case& c : cases) {
    const uint16_t even = high_half(c.w0), odd = high_half(c.w1);
    bool first = true;
    const PairWeights w(1, 2, [&] {
      first = !first;
      return first ? odd : even;
    });
    const std::vector<float> got = product_of_pairs(k, w, {c.x0, c.x1});
    EXPECT_TRUE(equal_bits(got, std::vector<float>(16, c.expected)))
        << std::hexfloat << c.w1 << " * " << c.x1 << " + " << c.w0 << " * " << c.x0;
  }
}

TEST_P(KernelOfPairs, PairsLeaveTheFloatEnvironmentAlone) {
  const PairWeights w(4, 4, [] { return uint16_t{0x3F80}; });
  product_of_pairs(k, w, {1, 2, 3, 4});
  k.probe_dot(1);
  volatile float least = std::numeric_limits<float>::min();
  volatile float half = least * 0.5f;
  EXPECT_NE(half, 0.0f);
}

// The tile takes weights in place and packed rows. One call computes it, or a second one continues
// the sums of the first.
TEST_P(KernelOfPairs, PairsTileGivesTheBitsOfMatrixVector) {
  for (size_t depth : {2, 6, 16, 66, 260, 514}) {
    for (size_t blocks : {1, 2, 3, 4}) {
      std::vector<std::vector<float>> expected;  // of each row, whichever share its tile
      for (int rows = 1; rows <= kTileRows; ++rows) {
        Stream s(depth + blocks);
        const bool tiny = depth == 66;
        const PairWeights w(blocks, depth,
                            [&] { return high_half(tiny ? near(s, -63, 9) : s.wide()); });
        const size_t ldx = depth + 3, width = 16 * blocks, ld = width + 3, cut = depth / 4 * 2;
        const Fenced<float> x((static_cast<size_t>(rows) - 1) * ldx + depth),
            y(static_cast<size_t>(rows) * ld), halves(static_cast<size_t>(rows) * ld);
        for (size_t i = 0; i < x.size(); ++i) x[i] = tiny ? near(s, -63, 9) : s.wide();
        const Fenced<uint32_t> packed(depth / 2 * kTileRows);
        k.pack_pairs(x.data(), ldx, rows, depth, packed.data());
        for (size_t i = 0; i < packed.size(); ++i) {
          const size_t row = i % kTileRows, at = i / kTileRows * 2;
          const float* from = x.data() + row * ldx + at;
          const uint32_t expected =
              row < static_cast<size_t>(rows)
                  ? plain_bf16(from[0]) | static_cast<uint32_t>(plain_bf16(from[1])) << 16
                  : 0;
          ASSERT_EQ(packed[i], expected) << i;
        }
        const int vectors = static_cast<int>(blocks);
        k.tile_pairs(packed.data(), w.packed.data(), depth, depth,
                     {nullptr, 0, y.data(), ld, rows, vectors});
        const Fetch next = {packed.data(), depth * 40, size_t{1} << 40, blocks};
        k.tile_pairs(packed.data(), w.packed.data(), depth, cut,
                     {nullptr, 0, halves.data(), ld, rows, vectors, next});
        k.tile_pairs(packed.data() + cut / 2 * kTileRows, w.packed.data() + cut * kLanes, depth,
                     depth - cut, {halves.data(), ld, halves.data(), ld, rows, vectors});
        for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
          const std::vector<float> row(x.data() + r * ldx, x.data() + r * ldx + depth);
          if (expected.size() == r) expected.push_back(w.times(row.data()));
          ASSERT_TRUE(equal_bits(y.span().subspan(r * ld, width), expected[r]))
              << "row " << r << ", k " << depth;
          ASSERT_TRUE(equal_bits(y.span().subspan(r * ld, width), product_of_pairs(k, w, row)));
          for (size_t i = width; i < ld; ++i)
            ASSERT_EQ(bits_of(y[r * ld + i]), 0xFFFFFFFFu) << "written past the row";
        }
        ASSERT_TRUE(equal_bits(halves.span(), y.span()));
        ASSERT_TRUE(y.untouched() && halves.untouched() && packed.untouched());
        if (k.tile_flushed == nullptr) continue;
        const Fenced<float> wide(depth * kTileRows), panel(depth * kPanel),
            again(static_cast<size_t>(rows) * ld);
        k.pack_rounded(x.data(), ldx, rows, depth, wide.data());
        k.widen_panel[static_cast<int>(WeightType::bf16)](w.packed.data(), blocks, depth, 0, depth,
                                                          panel.data());
        k.tile_flushed(wide.data(), panel.data(), cut,
                       {nullptr, 0, again.data(), ld, rows, vectors});
        k.tile_flushed(wide.data() + cut * kTileRows, panel.data() + cut * kPanel, depth - cut,
                       {again.data(), ld, again.data(), ld, rows, vectors});
        ASSERT_TRUE(equal_bits(again.span(), y.span()));
        ASSERT_TRUE(wide.untouched() && again.untouched());
      }
    }
  }
}

}  // namespace
}  // namespace stet::test::kernels_of_pairs_tests
