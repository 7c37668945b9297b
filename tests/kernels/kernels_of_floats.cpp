// Linear layers whose weights are float32, bfloat16 or float16: every instruction set gives the bits
// of the contract and touches only its operands.
#include <cmath>

#include "tests/support/kernel_testing.hpp"

namespace stet::test::kernels_of_floats_tests {
namespace {

class KernelOfFloats : public EachIsa {};

INSTANTIATE_TEST_SUITE_P(All, KernelOfFloats, testing::ValuesIn(isa_names()),
                         [](const auto& info) { return info.param; });

// Packed weights of a type and their values, worth[16 * blocks][k].
struct Weights {
  WeightType type;
  size_t blocks, k;
  Fenced<float> f32;
  Fenced<uint16_t> half;
  std::vector<float> worth;

  const void* data() const {
    return type == WeightType::f32 ? static_cast<const void*>(f32.data()) : half.data();
  }

  Weights(WeightType t, size_t n, size_t columns, uint64_t seed, Fill fill)
      : type(t),
        blocks(n),
        k(columns),
        f32(t == WeightType::f32 ? n * columns * 16 : 0),
        half(t == WeightType::f32 ? 0 : n * columns * 16),
        worth(n * columns * 16) {
    Stream s(seed);
    for (size_t row = 0; row < 16 * blocks; ++row) {
      for (size_t i = 0; i < k; ++i) {
        const size_t block = row / 16 * 16 * k, lane = row % 16;
        float& value = worth[row * k + i];
        if (type == WeightType::f32) {
          value = fill == Fill::special ? s.special() : s.wide();
          f32[block + i * 16 + lane] = value;
          continue;
        }
        uint16_t bits = static_cast<uint16_t>(s.next());
        if (fill != Fill::special) {  // restricts exponents to the middle of the range
          const uint32_t sign = bits & 0x8000u,
                         fraction = bits & (type == WeightType::bf16 ? 0x7Fu : 0x3FFu);
          const uint32_t exponent = static_cast<uint32_t>(s.next() % 20);
          bits = static_cast<uint16_t>(
              sign | fraction |
              (type == WeightType::bf16 ? (exponent + 117) << 7 : (exponent + 5) << 10));
        }
        value = static_cast<float>(type == WeightType::bf16 ? exact_bf16(bits) : exact_f16(bits));
        half[block + i / 2 * 32 + lane * 2 + i % 2] = bits;
      }
    }
  }

  std::vector<float> times(const float* x) const {
    std::vector<float> y(16 * blocks);
    for (size_t row = 0; row < y.size(); ++row) y[row] = plain_dot(worth.data() + row * k, x, k);
    return y;
  }
};

constexpr WeightType kTypes[] = {WeightType::f32, WeightType::bf16, WeightType::f16};

TEST_P(KernelOfFloats, MatrixVectorIsOneChainPerOutput) {
  for (WeightType type : kTypes) {
    for (size_t blocks : {1, 2, 3, 4, 5, 7, 8, 9}) {
      for (size_t depth : {2, 4, 14, 16, 18, 62, 64, 66, 128, 510, 514}) {
        for (Fill fill : {Fill::wide, Fill::special}) {
          const Weights w(type, blocks, depth, depth * 31 + blocks, fill);
          // Special inputs are used only at small depths; at larger ones all sums would be NaN.
          const size_t ldx = depth + 3, width = 16 * blocks, ldy = width + 16;
          const Fenced<float> x(numbers(kGemvRows * ldx, depth, depth <= 4 ? fill : Fill::wide));
          std::vector<std::vector<float>> expected;
          for (size_t r = 0; r < kGemvRows; ++r) expected.push_back(w.times(x.data() + r * ldx));
          for (size_t rows = 1; rows <= kGemvRows; ++rows) {
            const Fenced<float> y(rows * ldy);
            k.gemv[static_cast<int>(type)](w.data(), blocks, depth, x.data(), ldx, y.data(), ldy,
                                           static_cast<int>(rows));
            for (size_t r = 0; r < rows; ++r) {
              ASSERT_TRUE(equal_bits(y.span().subspan(r * ldy, width), expected[r]))
                  << "type " << static_cast<int>(type) << ", blocks " << blocks << ", k " << depth
                  << ", row " << r << " of " << rows;
              for (size_t i = width; i < ldy; ++i)
                ASSERT_EQ(bits_of(y[r * ldy + i]), 0xFFFFFFFFu) << "written past the row";
            }
            ASSERT_TRUE(y.untouched());
          }
        }
      }
    }
  }
}

// Infinities, NaNs and denormals one at a time among ordinary numbers.
TEST_P(KernelOfFloats, MatrixVectorWithOneSpecialInput) {
  const size_t depth = 34;
  const Weights w(WeightType::bf16, 3, depth, 5, Fill::wide);
  for (float special : {kInf, -kInf, kNan, 0x1p-149f, -0x1.8p-140f, -0.0f, 0x1.fffffep127f}) {
    for (size_t at = 0; at < depth; ++at) {
      std::vector<float> values = numbers(depth, 77);
      values[at] = special;
      const Fenced<float> x(values), y(48);
      k.gemv[1](w.data(), 3, depth, x.data(), 0, y.data(), 0, 1);
      ASSERT_TRUE(equal_bits(y.span(), w.times(x.data()))) << special << " at " << at;
    }
  }
}

// Products and sums below the normal range keep every bit: nothing is flushed to zero.
TEST_P(KernelOfFloats, MatrixVectorHonoursDenormals) {
  const size_t depth = 16;
  Weights w(WeightType::f32, 1, depth, 5, Fill::wide);
  for (float& value : w.worth) value = 0x1p-75f;
  for (size_t i = 0; i < w.f32.size(); ++i) w.f32[i] = 0x1p-75f;
  std::vector<float> values(depth, 0x1p-74f);
  values[3] = 0x1.8p-73f;
  const Fenced<float> x(values), y(16);
  k.gemv[0](w.data(), 1, depth, x.data(), 0, y.data(), 0, 1);
  EXPECT_EQ(y[0], 18 * 0x1p-149f);
  EXPECT_TRUE(equal_bits(y.span(), w.times(x.data())));
}

// Four products whose sum differs in each of the other 23 orders, so that only the documented order
// passes.
TEST_P(KernelOfFloats, ChainOrderIsOddThenEven) {
  const auto chain = [](const float* w, const float* x, const std::vector<int>& order) {
    float acc = 0;
    for (int i : order) acc = std::fma(w[i], x[i], acc);
    return acc;
  };
  const std::vector<int> documented = {1, 0, 3, 2};
  int cases = 0;
  for (uint64_t seed = 0; seed < 20000 && cases < 5; ++seed) {
    std::vector<float> w = numbers(4, 2 * seed), x = numbers(4, 2 * seed + 1);
    const double rest = static_cast<double>(w[0]) * x[0] + static_cast<double>(w[1]) * x[1] +
                        static_cast<double>(w[3]) * x[3];
    x[2] = static_cast<float>(-rest / w[2]);  // the sum cancels and leaves only rounding errors
    const float expected = chain(w.data(), x.data(), documented);
    std::vector<int> order = {0, 1, 2, 3};
    bool unique = true;
    do {
      unique = unique && (order == documented ||
                          bits_of(chain(w.data(), x.data(), order)) != bits_of(expected));
    } while (std::next_permutation(order.begin(), order.end()));
    if (!unique) continue;
    ++cases;
    Fenced<float> packed(64), y(16), panel(4 * 64), rows(4 * kTileRows), tile(64);
    for (size_t i = 0; i < 64; ++i) packed[i] = w[i / 16];
    k.gemv[0](packed.data(), 1, 4, x.data(), 0, y.data(), 0, 1);
    EXPECT_TRUE(equal_bits(y.span(), std::vector<float>(16, expected)));
    k.widen_panel[0](packed.data(), 1, 4, 0, 4, panel.data());
    k.pack_rows(x.data(), 4, 1, 4, rows.data());
    k.tile(rows.data(), panel.data(), 4, {nullptr, 0, tile.data(), 64, 1, 1});
    EXPECT_TRUE(equal_bits(tile.span().first(16), std::vector<float>(16, expected)));
  }
  EXPECT_EQ(cases, 5);
}

TEST_P(KernelOfFloats, ChainsStartAtPlusZero) {
  const Fenced<float> w(std::vector<float>(32, -0.0f)), x(std::vector<float>(2, 1.0f)), y(16);
  k.gemv[0](w.data(), 1, 2, x.data(), 0, y.data(), 0, 1);
  EXPECT_TRUE(equal_bits(y.span(), std::vector<float>(16, 0.0f)));
}

TEST_P(KernelOfFloats, MatrixVectorIsWithinTheDerivedBound) {
  for (WeightType type : kTypes) {
    for (size_t depth : {2, 64, 514, 4096}) {
      const Weights w(type, 2, depth, depth, Fill::wide);
      const Fenced<float> x(numbers(depth, 9, Fill::wide)), y(32);
      k.gemv[static_cast<int>(type)](w.data(), 2, depth, x.data(), 0, y.data(), 0, 1);
      for (size_t row = 0; row < 32; ++row) {
        double sum = 0,
               size = 0;  // products are exact in float64, sums within depth * 2^-53 of size
        for (size_t i = 0; i < depth; ++i) {
          const double product = static_cast<double>(w.worth[row * depth + i]) * x[i];
          sum += product;
          size += std::fabs(product);
        }
        const double bound =
            (gamma(static_cast<double>(depth)) + static_cast<double>(depth) * 0x1p-53) * size;
        ASSERT_LE(std::fabs(y[row] - sum), bound) << "row " << row << ", k " << depth;
      }
    }
  }
}

// Panels and packed rows are in chain order, with zeros after the last row.
TEST_P(KernelOfFloats, PanelsAndPackedRowsAreInChainOrder) {
  for (WeightType type : kTypes) {
    for (size_t blocks : {1, 2, 3, 4}) {
      const size_t depth = 20, k0 = 6, kc = 10;
      const Weights w(type, blocks, depth, blocks, Fill::special);
      const Fenced<float> panel((kc - 1) * 64 + 16 * blocks);
      k.widen_panel[static_cast<int>(type)](w.data(), blocks, depth, k0, kc, panel.data());
      for (size_t i = 0; i < panel.size(); ++i) {
        const size_t column = i % 64;
        const float expected =
            column < 16 * blocks ? w.worth[column * depth + k0 + ((i / 64) ^ 1)] : kNan;
        ASSERT_TRUE(same_bits(panel[i], expected)) << i;
      }
      ASSERT_TRUE(panel.untouched());
    }
  }
  for (int rows = 1; rows <= kTileRows; ++rows) {
    const size_t ldx = 13, kc = 10;
    const Fenced<float> x(numbers(static_cast<size_t>(rows - 1) * ldx + kc, 3));
    const Fenced<float> packed(kc * kTileRows);
    k.pack_rows(x.data(), ldx, rows, kc, packed.data());
    for (size_t i = 0; i < packed.size(); ++i) {
      const size_t row = i % kTileRows, at = (i / kTileRows) ^ 1;
      ASSERT_EQ(bits_of(packed[i]),
                bits_of(row < static_cast<size_t>(rows) ? x[row * ldx + at] : 0.0f))
          << i;
    }
    ASSERT_TRUE(packed.untouched());
  }
}

// The matrix-matrix tile gives the bits of the matrix-vector product, whether one call computes it
// or a second one continues the sums of the first. Prefetching, even of unmapped memory, changes
// nothing.
TEST_P(KernelOfFloats, TileGivesTheBitsOfMatrixVector) {
  for (WeightType type : kTypes) {
    for (size_t depth : {2, 6, 16, 66, 130}) {
      for (size_t blocks : {1, 2, 3, 4}) {
        for (int rows = 1; rows <= kTileRows; ++rows) {
          const Weights w(type, blocks, depth, depth + blocks, Fill::wide);
          const Fenced<float> x(numbers(static_cast<size_t>(rows) * depth, 11, Fill::wide));
          const size_t width = 16 * blocks, ld = width + 3, cut = depth / 4 * 2;
          const Fenced<float> panel(depth * 64), packed(depth * kTileRows),
              y(static_cast<size_t>(rows) * ld), halves(static_cast<size_t>(rows) * ld);
          k.widen_panel[static_cast<int>(type)](w.data(), blocks, depth, 0, depth, panel.data());
          k.pack_rows(x.data(), depth, rows, depth, packed.data());
          k.tile(packed.data(), panel.data(), depth,
                 {nullptr, 0, y.data(), ld, rows, static_cast<int>(blocks)});
          const Fetch next = {packed.data(), depth * 40, size_t{1} << 40, blocks};
          k.tile(packed.data(), panel.data(), cut,
                 {nullptr, 0, halves.data(), ld, rows, static_cast<int>(blocks), next});
          k.tile(packed.data() + cut * kTileRows, panel.data() + cut * 64, depth - cut,
                 {halves.data(), ld, halves.data(), ld, rows, static_cast<int>(blocks)});
          for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
            const Fenced<float> vector(width);
            k.gemv[static_cast<int>(type)](w.data(), blocks, depth, x.data() + r * depth, 0,
                                           vector.data(), 0, 1);
            ASSERT_TRUE(equal_bits(y.span().subspan(r * ld, width), vector.span()))
                << "row " << r << " of " << rows << ", k " << depth << ", blocks " << blocks;
            ASSERT_TRUE(equal_bits(vector.span(), w.times(x.data() + r * depth)));
            for (size_t i = width; i < ld; ++i)
              ASSERT_EQ(bits_of(y[r * ld + i]), 0xFFFFFFFFu) << "written past the row";
          }
          ASSERT_TRUE(equal_bits(halves.span(), y.span()));
          ASSERT_TRUE(y.untouched() && halves.untouched());
        }
      }
    }
  }
}

}  // namespace
}  // namespace stet::test::kernels_of_floats_tests
