// Every kernel of every instruction set gives the bits of the contract and touches only its
// operands.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/processor.hpp"
#include "tests/support/kernel_testing.hpp"

namespace stet::test::kernels_tests {
namespace {

class Kernel : public EachIsa {};

constexpr size_t kLengths[] = {1,  2,  7,  15, 16,  17,  31,  32,  33,  47,  48,
                               49, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000};

INSTANTIATE_TEST_SUITE_P(All, Kernel, testing::ValuesIn(isa_names()),
                         [](const auto& info) { return info.param; });

// ---------------------------------------------------------------- choice of the table

TEST(Isa, UnknownNamesGiveNothing) {
  for (const char* name : {"", "AVX2", "avx", "avx2 ", "avx5120", "sse", "NEON"})
    EXPECT_EQ(find_kernels(name), nullptr) << name;
}

TEST(Isa, AForcedTableIsTheOneAskedFor) {
  const std::vector<std::string> names = isa_names();
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names[0], "portable");
  EXPECT_EQ(names.back(), best_kernels().name);
  for (const std::string& name : names) {
    const Kernels* k = find_kernels(name.c_str());
    ASSERT_NE(k, nullptr) << name;
    EXPECT_EQ(k->name, name);
  }
  for (const char* name : {"portable", "avx2", "avx512", "avx512bf16", "neon", "neondot"}) {
    EXPECT_EQ(find_kernels(name) != nullptr, std::count(names.begin(), names.end(), name) == 1)
        << name;
  }
}

// A linker that folds identical code, or a table filled from another one, would make the choice of
// a table meaningless. The VNNI and BF16 tables are derived from another table on purpose: see
// below.
TEST(Isa, TablesShareNoFunction) {
  const std::vector<std::string> names = isa_names();
  for (size_t i = 0; i < names.size() && names[i] != "avx512vnni" && names[i] != "neondot"; ++i) {
    for (size_t j = 0; j < i; ++j) {
      const Kernels &a = *find_kernels(names[i].c_str()), &b = *find_kernels(names[j].c_str());
      for (int t = 0; t < kFloatWeightTypes; ++t) {
        EXPECT_NE(a.gemv[t], b.gemv[t]);
        EXPECT_NE(a.widen_panel[t], b.widen_panel[t]);
        EXPECT_NE(a.widen[t], b.widen[t]);
        EXPECT_NE(a.attend[t], b.attend[t]);
      }
      EXPECT_NE(a.pack_rows, b.pack_rows);
      EXPECT_NE(a.tile, b.tile);
      EXPECT_NE(a.merge, b.merge);
      EXPECT_NE(a.divide, b.divide);
      EXPECT_NE(a.rms_norm, b.rms_norm);
      EXPECT_NE(a.layer_norm, b.layer_norm);
      EXPECT_NE(a.add, b.add);
      EXPECT_NE(a.scale, b.scale);
      EXPECT_NE(a.silu_mul, b.silu_mul);
      EXPECT_NE(a.gelu_tanh_mul, b.gelu_tanh_mul);
      EXPECT_NE(a.clamped_silu_mul, b.clamped_silu_mul);
      EXPECT_NE(a.gelu_tanh, b.gelu_tanh);
      EXPECT_NE(a.gelu, b.gelu);
      EXPECT_NE(a.rope, b.rope);
      EXPECT_NE(a.exp, b.exp);
      EXPECT_NE(a.tanh, b.tanh);
      EXPECT_NE(a.probe_read, b.probe_read);
      EXPECT_NE(a.probe_fma, b.probe_fma);
      EXPECT_NE(a.round_pairs, b.round_pairs);
      EXPECT_NE(a.gemv_pairs, b.gemv_pairs);
      EXPECT_NE(a.pack_pairs, b.pack_pairs);
      EXPECT_NE(a.tile_pairs, b.tile_pairs);
      EXPECT_TRUE(a.tile_flushed == nullptr || a.tile_flushed != b.tile_flushed);
      EXPECT_NE(a.probe_dot, b.probe_dot);
    }
  }
}

// Expects two tables to share all functions except the quantized products or the products of pairs.
void expect_shared_but(const Kernels& a, const Kernels& b, bool quants, bool pairs) {
  EXPECT_EQ(a.gemv_q8 != b.gemv_q8, quants);
  EXPECT_EQ(a.gemv_q4 != b.gemv_q4, quants);
  EXPECT_EQ(a.gemv_q5 != b.gemv_q5, quants);
  EXPECT_EQ(a.gemv_mxfp4 != b.gemv_mxfp4, quants);
  EXPECT_EQ(a.tile_mxfp4 != b.tile_mxfp4, quants);
  EXPECT_EQ(a.tile_q8 != b.tile_q8, quants);
  EXPECT_EQ(a.tile_q4 != b.tile_q4, quants);
  for (int t = 0; t < kSuperTypes; ++t) {
    EXPECT_EQ(a.gemv_super[t] != b.gemv_super[t], quants);
    EXPECT_EQ(a.tile_super[t] != b.tile_super[t], quants);
  }
  EXPECT_EQ(a.probe_bytes != b.probe_bytes, quants);
  EXPECT_EQ(a.round_pairs != b.round_pairs, pairs);
  EXPECT_EQ(a.gemv_pairs != b.gemv_pairs, pairs);
  EXPECT_EQ(a.pack_pairs != b.pack_pairs, pairs);
  EXPECT_EQ(a.tile_pairs != b.tile_pairs, pairs);
  EXPECT_EQ(a.probe_dot != b.probe_dot, pairs);
  EXPECT_EQ(a.tile, b.tile);
  EXPECT_EQ(a.exp, b.exp);
  for (int t = 0; t < kStoredTypes; ++t) EXPECT_EQ(a.attend[t], b.attend[t]);
}

TEST(Isa, DerivedTablesShareUnchangedFunctions) {
  bool any = false;
  for (const auto& [base, bytes, pairs] : {std::array{"avx512", "avx512vnni", "avx512bf16"},
                                           std::array{"neon", "neondot", "neonbf16"}}) {
    const Kernels *const plain = find_kernels(base), *const dot = find_kernels(bytes),
                         *const bf16 = find_kernels(pairs);
    if (dot == nullptr) continue;
    any = true;
    expect_shared_but(*plain, *dot, true, false);
    if (bf16 != nullptr) expect_shared_but(*dot, *bf16, false, true);
  }
  if (!any) GTEST_SKIP() << "no products of bytes on this machine";
}

// The table with VDPBF16PS leaves prompts to FMA on the Intel models where that is faster.
TEST(Isa, PromptsOfBfloat16AreReadByTheFasterInstruction) {
  for (const int model : {0x8F, 0xCF, 0xAD, 0xAE})
    EXPECT_TRUE(reads_prompts_by_fma({true, 6, model})) << model;
  for (const int model : {0x55, 0x6A, 0x8E, 0x9F, 0x0F, 0})  // Cooper Lake and Ice Lake among them
    EXPECT_FALSE(reads_prompts_by_fma({true, 6, model})) << model;
  EXPECT_FALSE(reads_prompts_by_fma({false, 6, 0x8F}));  // another maker's
  EXPECT_FALSE(reads_prompts_by_fma({true, 15, 0x8F}));
  EXPECT_FALSE(reads_prompts_by_fma({false, 0x19, 0x8F}));
  EXPECT_FALSE(reads_prompts_by_fma({false, 0x1A, 2}));
}

// ---------------------------------------------------------------- linear layers

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

TEST_P(Kernel, MatrixVectorIsOneChainPerOutput) {
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
TEST_P(Kernel, MatrixVectorWithOneSpecialInput) {
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
TEST_P(Kernel, MatrixVectorHonoursDenormals) {
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
TEST_P(Kernel, ChainOrderIsOddThenEven) {
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

TEST_P(Kernel, ChainsStartAtPlusZero) {
  const Fenced<float> w(std::vector<float>(32, -0.0f)), x(std::vector<float>(2, 1.0f)), y(16);
  k.gemv[0](w.data(), 1, 2, x.data(), 0, y.data(), 0, 1);
  EXPECT_TRUE(equal_bits(y.span(), std::vector<float>(16, 0.0f)));
}

TEST_P(Kernel, MatrixVectorIsWithinTheDerivedBound) {
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
TEST_P(Kernel, PanelsAndPackedRowsAreInChainOrder) {
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
TEST_P(Kernel, TileGivesTheBitsOfMatrixVector) {
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

// ---------------------------------------------------------------- linear layers of contract bf16

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
TEST_P(Kernel, PairsAreRoundedToNearestEven) {
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

TEST_P(Kernel, PairsMatrixVectorIsOneChainPerOutput) {
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

TEST_P(Kernel, PairsWithOneSpecialInput) {
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
TEST_P(Kernel, PairsFlushDenormals) {
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
TEST_P(Kernel, PairsAtTheEdges) {
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

TEST_P(Kernel, PairsLeaveTheFloatEnvironmentAlone) {
  const PairWeights w(4, 4, [] { return uint16_t{0x3F80}; });
  product_of_pairs(k, w, {1, 2, 3, 4});
  k.probe_dot(1);
  volatile float least = std::numeric_limits<float>::min();
  volatile float half = least * 0.5f;
  EXPECT_NE(half, 0.0f);
}

// The tile takes weights in place and packed rows. One call computes it, or a second one continues
// the sums of the first.
TEST_P(Kernel, PairsTileGivesTheBitsOfMatrixVector) {
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

// ---------------------------------------------------------------- elementwise

// Runs `kernel(inputs…, y, n)` at every length on guarded memory, and checks each element against
// `plain`.
template <class Run, class Plain>
void check_elementwise(Run run, Plain plain) {
  for (size_t n : kLengths) {
    for (Fill fill : {Fill::wide, Fill::special}) {
      const Fenced<float> a(numbers(n, n, fill)), b(numbers(n, n + 5000, fill)), y(n);
      run(a.data(), b.data(), y.data(), n);
      std::vector<float> expected(n);
      for (size_t i = 0; i < n; ++i) expected[i] = plain(a[i], b[i]);
      ASSERT_TRUE(equal_bits(y.span(), expected)) << "n = " << n;
      ASSERT_TRUE(a.untouched() && b.untouched() && y.untouched()) << "n = " << n;
    }
  }
}

TEST_P(Kernel, AddScaleDivide) {
  check_elementwise(
      [&](const float* a, const float* b, float* y, size_t n) {
        std::copy(a, a + n, y);
        k.add(y, b, n);
      },
      [](float a, float b) { return a + b; });
  for (float factor : {3.1f, -0.0f, 0x1p-140f, kInf}) {
    check_elementwise(
        [&](const float* a, const float*, float* y, size_t n) {
          std::copy(a, a + n, y);
          k.scale(y, factor, n);
        },
        [&](float a, float) { return a * factor; });
    check_elementwise(
        [&](const float* a, const float*, float* y, size_t n) { k.divide(a, factor, y, n); },
        [&](float a, float) { return a / factor; });
  }
}

TEST_P(Kernel, ExpAndTanhDoNotDependOnTheLane) {
  check_elementwise([&](const float* a, const float*, float* y, size_t n) { k.exp(a, y, n); },
                    [](float a, float) { return contract_exp(a); });
  check_elementwise([&](const float* a, const float*, float* y, size_t n) { k.tanh(a, y, n); },
                    [](float a, float) { return contract_tanh(a); });
}

TEST_P(Kernel, GatesAreTheirFormulas) {
  check_elementwise(
      [&](const float* a, const float* b, float* y, size_t n) { k.silu_mul(a, b, y, n); },
      [](float g, float u) { return g / (1.0f + contract_exp(0.0f - g)) * u; });
  for (const float limit : {7.0f, 0.5f}) {
    check_elementwise([&](const float* a, const float* b, float* y,
                          size_t n) { k.clamped_silu_mul(a, b, limit, y, n); },
                      [&](float g, float u) {
                        const float gate = g > limit ? limit : g, up = u > limit    ? limit
                                                                       : u < -limit ? -limit
                                                                                    : u;
                        return (up + 1.0f) * (gate / (1.0f + contract_exp(0.0f - 1.702f * gate)));
                      });
  }
  const auto gelu = [](float g) {
    const float inner = 0.7978845608028654f * std::fma(0.044715f, g * g * g, g);
    return 0.5f * g * (1.0f + contract_tanh(inner));
  };
  check_elementwise(
      [&](const float* a, const float* b, float* y, size_t n) { k.gelu_tanh_mul(a, b, y, n); },
      [&](float g, float u) { return gelu(g) * u; });
  check_elementwise([&](const float* a, const float*, float* y, size_t n) { k.gelu_tanh(a, y, n); },
                    [&](float g, float) { return gelu(g); });
  check_elementwise([&](const float* a, const float*, float* y, size_t n) { k.gelu(a, y, n); },
                    [](float g, float) {
                      float y;
                      kernels_portable.gelu(&g, &y, 1);
                      return y;
                    });
}

TEST_P(Kernel, Rope) {
  for (size_t half : {1, 4, 8, 12, 15, 16, 17, 32, 40, 64, 128}) {
    for (Fill fill : {Fill::wide, Fill::special}) {
      const std::vector<float> before = numbers(2 * half, half, fill);
      const Fenced<float> x(before), cos(numbers(half, 1)), sin(numbers(half, 2));
      k.rope(x.data(), cos.data(), sin.data(), half);
      for (size_t i = 0; i < half; ++i) {
        const float a = before[i], b = before[half + i];
        ASSERT_TRUE(same_bits(x[i], std::fma(a, cos[i], 0.0f - b * sin[i]))) << half << ": " << i;
        ASSERT_TRUE(same_bits(x[half + i], std::fma(b, cos[i], a * sin[i]))) << half << ": " << i;
      }
      ASSERT_TRUE(x.untouched());
    }
  }
}

TEST_P(Kernel, RmsNormHasSixteenLanesAndATree) {
  for (size_t n : kLengths) {
    for (Fill fill : {Fill::real, Fill::wide, Fill::special}) {
      const std::vector<float> values = numbers(n, n, fill), weights = numbers(n, n + 1);
      const Fenced<float> x(values), w(weights), y(n);
      k.rms_norm(x.data(), w.data(), 1e-6f, y.data(), n);
      ASSERT_TRUE(equal_bits(y.span(), plain_rms_norm(values, weights, 1e-6f))) << n;
      k.rms_norm(x.data(), w.data(), 1e-6f, x.data(), n);
      ASSERT_TRUE(equal_bits(x.span(), y.span())) << "in place, n = " << n;
      ASSERT_TRUE(y.untouched() && x.untouched());
    }
  }
}

// Checks lanes and tree with values that any other grouping would sum differently: adding 1 to 2^24
// has no effect.
TEST_P(Kernel, RmsNormSumOrder) {
  std::vector<float> x(32, 1.0f);
  x[0] = 4096.0f;  // lane 0: 2^24, where adding 1 has no effect
  x[8] = 4096.0f;  // joins lane 0 first: 2^25, where adding 1 or 2 has no effect
  // Lanes 4 and 12 give 2 + 2 = 4, lanes 2, 6, 10 and 14 give 8, the odd ones 16.
  const float sum = 0x1p25f + 28.0f;
  const Fenced<float> in(x), w(std::vector<float>(32, 1.0f)), y(32);
  k.rms_norm(in.data(), w.data(), 0.0f, y.data(), 32);
  EXPECT_EQ(bits_of(y[1]), bits_of(1.0f / std::sqrt(sum / 32)));
}

TEST_P(Kernel, LayerNormHasSixteenLanesAndATree) {
  for (size_t n : kLengths) {
    for (Fill fill : {Fill::real, Fill::wide, Fill::special}) {
      const std::vector<float> values = numbers(n, n, fill), weights = numbers(n, n + 1),
                               biases = numbers(n, n + 2);
      const Fenced<float> x(values), w(weights), b(biases), y(n);
      k.layer_norm(x.data(), w.data(), b.data(), 1e-5f, y.data(), n);
      ASSERT_TRUE(equal_bits(y.span(), plain_layer_norm(values, weights, biases, 1e-5f))) << n;
      k.layer_norm(x.data(), w.data(), b.data(), 1e-5f, x.data(), n);
      ASSERT_TRUE(equal_bits(x.span(), y.span())) << "in place, n = " << n;
      ASSERT_TRUE(y.untouched() && x.untouched() && w.untouched() && b.untouched());
    }
  }
}

// Checks the mean with values that any other grouping would sum differently: adding 1 to 2^24 has
// no effect. The large eps hides the variance, and 1 / sqrt(eps) is a power of two.
TEST_P(Kernel, LayerNormSumOrder) {
  std::vector<float> x(32, 1.0f);
  // x[0] + x[8] is 2^25, as in RmsNormSumOrder. Of the other lanes, only sums of at least 4 add to
  // it.
  x[0] = x[8] = 0x1p24f;
  const float mean = (0x1p25f + 28.0f) / 32;
  const Fenced<float> in(x), w(std::vector<float>(32, 1.0f)), b(std::vector<float>(32, 0.0f)),
      y(32);
  k.layer_norm(in.data(), w.data(), b.data(), 0x1p100f, y.data(), 32);
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(bits_of(y[i]), bits_of((x[i] - mean) * 0x1p-50f)) << i;
}

// Compares with float64. `steps` additions in a row make the mean, and with it each difference, off
// by at most gamma(steps) times the largest |x|. The relative error of the deviation is bounded in
// the same way.
TEST_P(Kernel, LayerNormIsWithinTheDerivedBound) {
  for (size_t n : {16, 17, 768, 1600}) {
    std::vector<float> x = numbers(n, n);
    for (float& value : x) value += 0.25f;
    const Fenced<float> in(x), w(numbers(n, 1)), b(numbers(n, 2)), y(n);
    k.layer_norm(in.data(), w.data(), b.data(), 1e-5f, y.data(), n);
    double mean = 0, variance = 0;
    for (float value : x) mean += value / static_cast<double>(n);
    for (float value : x) variance += (value - mean) * (value - mean) / static_cast<double>(n);
    const double deviation = std::sqrt(variance + static_cast<double>(1e-5f)),
                 steps = static_cast<double>(n) / 16 + 8;
    for (size_t i = 0; i < n; ++i) {
      const double exact = (x[i] - mean) / deviation * w[i] + b[i];
      const double relative = gamma(2 * steps) * 1.25 / deviation;  // |x| <= 1.25, |w| and |b| <= 1
      const double bound = relative * (1 + 2 * std::fabs(x[i] - mean) / deviation) +
                           gamma(8) * (std::fabs(exact) + 1);
      ASSERT_LE(std::fabs(y[i] - exact), bound) << "n " << n << ", element " << i;
    }
  }
}

// All 65536 patterns at every position in a vector. NaNs become quiet NaNs with the same payload.
TEST_P(Kernel, WideningIsExact) {
  std::vector<uint16_t> all(65536);
  std::iota(all.begin(), all.end(), uint16_t{0});
  for (size_t shift : {0, 1, 7}) {
    const Fenced<uint16_t> x(
        std::vector<uint16_t>(all.begin() + static_cast<int64_t>(shift), all.end()));
    const Fenced<float> bf16(x.size()), f16(x.size());
    k.widen[1](x.data(), bf16.data(), x.size());
    k.widen[2](x.data(), f16.data(), x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(bits_of(bf16[i]), static_cast<uint32_t>(x[i]) << 16);
      const bool nan = (x[i] & 0x7C00) == 0x7C00 && (x[i] & 0x3FF) != 0;
      const uint32_t quiet =
          (static_cast<uint32_t>(x[i]) & 0x8000u) << 16 | 0x7FC00000u | (x[i] & 0x3FFu) << 13;
      ASSERT_EQ(bits_of(f16[i]), nan ? quiet : bits_of(static_cast<float>(exact_f16(x[i])))) << i;
    }
    ASSERT_TRUE(bf16.untouched() && f16.untouched());
  }
  for (size_t n : kLengths) {
    const Fenced<float> x(numbers(n, n, Fill::special)), y(n);
    k.widen[0](x.data(), y.data(), n);
    ASSERT_EQ(std::memcmp(x.data(), y.data(), n * 4), 0);
    ASSERT_TRUE(y.untouched());
  }
}

}  // namespace
}  // namespace stet::test::kernels_tests
