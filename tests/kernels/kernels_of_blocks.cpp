// Kernels of q8, q4 and q5 give the bits of the contract restated in plain C++.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/support/kernel_testing.hpp"

namespace stet::test::kernels_of_blocks_tests {
namespace {

class KernelsOfBlocks : public EachIsa {};

// ---------------------------------------------------------------- the contract, restated

constexpr WeightType kTypes[] = {WeightType::q8, WeightType::q4, WeightType::q5};

// Weights as numbers, and packed as the comment in kernels.hpp describes.
struct QuantWeights {
  WeightType type;
  size_t blocks, k;
  std::vector<int> u;           // [16 blocks][k]
  std::vector<uint16_t> scale;  // [16 blocks][k / 32]
  Fenced<uint8_t> packed;

  QuantWeights(WeightType t, size_t n, size_t columns, uint64_t seed)
      : type(t),
        blocks(n),
        k(columns),
        u(16 * n * columns),
        scale(16 * n * columns / 32),
        packed(n * columns / 64 * strip_bytes()) {
    Stream s(seed);
    std::memset(packed.data(), 0, packed.size());
    for (int& x : u) x = static_cast<int>(s.next() % static_cast<size_t>(2 * zero()));
    for (uint16_t& d : scale)
      d = static_cast<uint16_t>((s.next() & 0x83FF) | (10 + s.next() % 8) << 10);
    for (size_t row = 0; row < 16 * blocks; ++row) {
      for (size_t i = 0; i < k; ++i) place(row, i);
    }
  }
  const char* name() const {
    return type == WeightType::q8 ? "q8" : type == WeightType::q4 ? "q4" : "q5";
  }
  size_t strip_bytes() const {
    return type == WeightType::q8 ? 1088 : type == WeightType::q4 ? 576 : 704;
  }
  int zero() const { return type == WeightType::q8 ? 128 : type == WeightType::q4 ? 8 : 16; }
  auto gemv(const Kernels& kernels) const {
    return type == WeightType::q8   ? kernels.gemv_q8
           : type == WeightType::q4 ? kernels.gemv_q4
                                    : kernels.gemv_q5;
  }
  // Returns the kernel for tiles. Writes its q8 strips to `bytes`, which must have room for all.
  auto tile(const Kernels& kernels, uint8_t* bytes) const {
    const size_t strips = blocks * k / 64;
    if (type == WeightType::q8) std::memcpy(bytes, packed.data(), packed.size());
    if (type == WeightType::q4) kernels.expand_q4(packed.data(), strips, bytes);
    if (type == WeightType::q5) kernels.expand_q5(packed.data(), strips, bytes);
    return type == WeightType::q4 ? kernels.tile_q4 : kernels.tile_q8;
  }
  void place(size_t row, size_t i) {
    const size_t lane = row % 16, half = i / 32 % 2, in = i % 32;
    uint8_t* strip = packed.data() + (row / 16 * (k / 64) + i / 64) * strip_bytes();
    std::memcpy(strip + (half * 16 + lane) * 2, &scale[(row * k + i) / 32], 2);
    const int value = u[row * k + i];
    if (type == WeightType::q8) {
      strip[64 + half * 512 + in / 4 * 64 + lane * 4 + in % 4] = static_cast<uint8_t>(value);
      return;
    }
    const bool q5 = type == WeightType::q5;
    uint8_t* const block = strip + 64 + half * (q5 ? 320 : 256);
    if (q5) block[lane * 4 + in % 4] |= static_cast<uint8_t>(value >> 4 << (in / 4));
    block[(q5 ? 64 : 0) + in % 16 / 4 * 64 + lane * 4 + in % 4] |=
        static_cast<uint8_t>(in < 16 ? value & 15 : (value & 15) << 4);
  }

  float times(size_t row, const float* x) const {
    float acc = 0;
    for (size_t b = 0; b < k / 32; ++b) {
      const PlainInput in = plain_input(x + b * 32);
      int sum = 0;
      for (size_t i = 0; i < 32; ++i) sum += (u[row * k + b * 32 + i] - zero()) * in.q[i];
      const float d = static_cast<float>(exact_f16(scale[row * (k / 32) + b]));
      const float factor = d * in.scale;
      acc = std::fma(static_cast<float>(sum), factor, acc);
    }
    return acc;
  }
  std::vector<float> times(const float* x) const {
    std::vector<float> y(16 * blocks);
    for (size_t row = 0; row < y.size(); ++row) y[row] = times(row, x);
    return y;
  }
};

// ---------------------------------------------------------------- inputs

std::vector<float> hard_inputs(size_t n, uint64_t seed) {
  std::vector<float> x = numbers(n, seed, Fill::wide);
  Stream s(seed + 1);
  for (size_t b = 0; b + kQuantBlock <= n; b += kQuantBlock) {
    float* block = x.data() + b;
    switch (s.next() % 10) {
      case 0:
        std::fill(block, block + kQuantBlock, 0.0f);
        break;
      case 1:
        std::fill(block, block + kQuantBlock, -0.0f);
        break;
      case 2:
        for (size_t i = 0; i < kQuantBlock; ++i) block[i] = s.real() * 0x1p-126f;
        break;  // denormals: a block is zero if no input reaches 2^-100
      case 3:
        for (size_t i = 0; i < kQuantBlock; ++i) block[i] = s.real() * 0x1p-100f;
        break;  // around 2^-100
      case 4:
        for (size_t i = 0; i < kQuantBlock; ++i) block[i] = s.real() * 0x1.fffffep127f;
        break;
      case 5:
        for (size_t i = 0; i < kQuantBlock; ++i)
          block[i] = static_cast<float>(static_cast<int>(i) - 16) * 0.5f * 127 / 16;
        break;  // ties
      case 6:
        std::fill(block, block + kQuantBlock, -s.wide());
        break;
      default:
        break;
    }
  }
  return x;
}

TEST_P(KernelsOfBlocks, InputsAreRoundedByTheContract) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const size_t n = 32 * (1 + seed % 5);
    std::vector<float> values = hard_inputs(n, seed);
    if (seed % 4 == 0) values[seed % n] = seed % 8 == 0 ? kNan : seed % 16 == 4 ? kInf : -kInf;
    const Fenced<float> x(values);
    const Fenced<QuantBlock> y(n / 32);
    k.quantize(x.data(), n, y.data());
    for (size_t b = 0; b < n / 32; ++b) {
      const PlainInput expected = plain_input(values.data() + 32 * b);
      ASSERT_TRUE(same_bits(y[b].scale, expected.scale)) << y[b].scale << " " << expected.scale;
      int sum = 0;
      for (int i = 0; i < kQuantBlock; ++i) {
        const int q =
            static_cast<int8_t>(static_cast<uint32_t>(y[b].quads[i / 4]) >> (i % 4 * 8) & 0xFFu);
        ASSERT_EQ(q, expected.q[i])
            << "input " << i << ", " << values[32 * b + static_cast<size_t>(i)];
        ASSERT_LE(std::abs(q), 127);
        sum += q;
      }
      ASSERT_EQ(y[b].sum, sum);
    }
    ASSERT_TRUE(y.untouched());
  }
}

// ---------------------------------------------------------------- products

TEST_P(KernelsOfBlocks, MatrixVectorIsTheChainOverBlocks) {
  for (const WeightType type : kTypes) {
    for (size_t depth : {64, 128, 320, 1088}) {
      for (size_t blocks : {1, 2, 3, 5}) {
        const QuantWeights w(type, blocks, depth, depth + blocks);
        const size_t ldx = depth / 32 + 1, width = 16 * blocks, ldy = width + 16;
        const Fenced<QuantBlock> quants(kGemvRows * ldx);
        std::vector<std::vector<float>> x;
        for (size_t r = 0; r < kGemvRows; ++r) {
          x.push_back(hard_inputs(depth, depth + r));
          k.quantize(x[r].data(), depth, quants.data() + r * ldx);
        }
        for (size_t rows = 1; rows <= kGemvRows; ++rows) {
          const Fenced<float> y(rows * ldy);
          w.gemv(k)(w.packed.data(), blocks, depth, quants.data(), ldx, y.data(), ldy,
                    static_cast<int>(rows));
          for (size_t r = 0; r < rows; ++r) {
            ASSERT_TRUE(equal_bits(y.span().subspan(r * ldy, width), w.times(x[r].data())))
                << w.name() << ", depth " << depth << ", blocks " << blocks << ", row " << r
                << " of " << rows;
          }
          ASSERT_TRUE(y.untouched());
        }
      }
    }
  }
}

// The largest integers of both signs. No intermediate sum may saturate or overflow.
TEST_P(KernelsOfBlocks, ExtremeIntegersDoNotSaturate) {
  for (const WeightType type : kTypes) {
    for (const bool largest : {false, true}) {
      for (const float sign : {1.0f, -1.0f}) {
        QuantWeights w(type, 1, 64, 1);
        std::memset(w.packed.data(), 0, w.packed.size());
        std::fill(w.u.begin(), w.u.end(), largest ? 2 * w.zero() - 1 : 0);
        for (size_t row = 0; row < 16; ++row) {
          for (size_t i = 0; i < 64; ++i) w.place(row, i);
        }
        const std::vector<float> x(64, sign * 3.0f);
        std::vector<QuantBlock> quants(2);
        std::vector<float> y(16);
        k.quantize(x.data(), 64, quants.data());
        ASSERT_EQ(quants[0].sum, static_cast<int>(sign) * 32 * 127);
        w.gemv(k)(w.packed.data(), 1, 64, quants.data(), 0, y.data(), 0, 1);
        ASSERT_TRUE(equal_bits(y, w.times(x.data())));
      }
    }
  }
}

TEST_P(KernelsOfBlocks, ANanInputMakesTheOutputsNan) {
  const QuantWeights w(WeightType::q8, 1, 64, 1);
  std::vector<float> x = numbers(64, 3);
  x[40] = kInf;
  std::vector<QuantBlock> quants(2);
  std::vector<float> y(16);
  k.quantize(x.data(), 64, quants.data());
  k.gemv_q8(w.packed.data(), 1, 64, quants.data(), 0, y.data(), 0, 1);
  for (const float value : y) EXPECT_NE(value, value);
}

TEST_P(KernelsOfBlocks, ExpandedWeightsAreTheSame) {
  for (const WeightType type : {WeightType::q4, WeightType::q5}) {
    const QuantWeights w(type, 1, 256, 9);
    const Fenced<uint8_t> q8(256 / 64 * static_cast<size_t>(kStripBytesQ8));
    w.tile(k, q8.data());
    QuantWeights expected(WeightType::q8, 1, 256, 9);
    // Expanded q5 integers have q8's zero, 128 instead of 16. Those of q4 keep their own.
    const int moved = type == WeightType::q5 ? 128 - 16 : 0;
    for (size_t i = 0; i < w.u.size(); ++i) expected.u[i] = w.u[i] + moved;
    expected.scale = w.scale;
    for (size_t row = 0; row < 16; ++row) {
      for (size_t i = 0; i < 256; ++i) expected.place(row, i);
    }
    EXPECT_EQ(std::memcmp(q8.data(), expected.packed.data(), q8.size()), 0) << w.name();
    EXPECT_TRUE(q8.untouched());
  }
}

// Computes the tile in one call, and in two calls of which the second continues the sums of the
// first. Compares both results with plain integers.
void check_tile(const Kernels& k, const QuantWeights& w, const Fenced<float>& x, int rows) {
  const size_t depth = w.k, width = 16 * w.blocks, ld = width + 3, cut = depth / 128 * 64;
  const int vectors = static_cast<int>(w.blocks);
  std::vector<uint8_t> bytes(w.blocks * depth / 64 * static_cast<size_t>(kStripBytesQ8));
  const auto tile = w.tile(k, bytes.data());
  const Fenced<QuantTile> packed(depth / 32);
  const Fenced<float> y(static_cast<size_t>(rows) * ld), halves(static_cast<size_t>(rows) * ld);
  k.pack_quants(x.data(), depth, rows, depth, packed.data());
  tile(packed.data(), bytes.data(), depth, depth, {nullptr, 0, y.data(), ld, rows, vectors});
  const Fetch next = {packed.data(), depth * 40, size_t{1} << 40,
                      w.blocks};  // prefetching unmapped memory changes nothing
  tile(packed.data(), bytes.data(), depth, cut,
       {nullptr, 0, halves.data(), ld, rows, vectors, next});
  tile(packed.data() + cut / 32, bytes.data() + cut / 64 * kStripBytesQ8, depth, depth - cut,
       {halves.data(), ld, halves.data(), ld, rows, vectors});
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    ASSERT_TRUE(equal_bits(y.span().subspan(r * ld, width), w.times(x.data() + r * depth)))
        << w.name() << ", row " << r << " of " << rows << ", depth " << depth << ", blocks "
        << w.blocks;
    for (size_t i = width; i < ld; ++i)
      ASSERT_EQ(bits_of(y[r * ld + i]), 0xFFFFFFFFu) << "written past the row";
  }
  ASSERT_TRUE(equal_bits(halves.span(), y.span()));
  ASSERT_TRUE(packed.untouched() && y.untouched() && halves.untouched());
}

TEST_P(KernelsOfBlocks, TileGivesTheBitsOfPlainIntegers) {
  for (const WeightType type : kTypes) {
    for (size_t depth : {64, 192, 640, 1088}) {
      for (size_t blocks : {1, 2, 3, 4}) {
        const QuantWeights w(type, blocks, depth, depth + blocks);
        for (int rows = 1; rows <= kTileRows; ++rows) {
          check_tile(k, w,
                     Fenced<float>(hard_inputs(static_cast<size_t>(rows) * depth, 11 + depth)),
                     rows);
        }
      }
    }
  }
}

// The largest sums of a block would overflow 16-bit integers.
TEST_P(KernelsOfBlocks, TileTakesTheLargestSums) {
  for (const WeightType type : kTypes) {
    for (const bool largest : {true, false}) {
      for (const float x : {3.0f, -3.0f}) {
        QuantWeights w(type, 4, 128, 5);
        std::memset(w.packed.data(), 0, w.packed.size());
        std::fill(w.u.begin(), w.u.end(), largest ? 2 * w.zero() - 1 : 0);
        for (size_t row = 0; row < 64; ++row) {
          for (size_t i = 0; i < 128; ++i) w.place(row, i);
        }
        check_tile(k, w, Fenced<float>(std::vector<float>(kTileRows * 128, x)), kTileRows);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, KernelsOfBlocks, testing::ValuesIn(isa_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace stet::test::kernels_of_blocks_tests
