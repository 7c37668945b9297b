// Kernels of mxfp4 against the contract restated in plain C++, bit for bit.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/support/kernel_testing.hpp"

namespace stet::test::kernels_of_mxfp4_tests {
namespace {

class KernelsOfMxfp4 : public EachIsa {};

// Returns twice the value of a code.
int doubled(int code) {
  constexpr int kMagnitudes[] = {0, 1, 2, 3, 4, 6, 8, 12};
  return code < 8 ? kMagnitudes[code] : -kMagnitudes[code - 8];
}

// Weights as numbers, and packed as the comment in kernels.hpp says.
struct Weights {
  size_t blocks, k;
  std::vector<int> codes;          // [16 blocks][k]
  std::vector<uint8_t> exponents;  // [16 blocks][k / 32]
  Fenced<uint8_t> packed;

  // Draws exponents from `low` to `high`, and now and then the smallest or the largest valid one.
  Weights(size_t n, size_t columns, uint64_t seed, int low = 110, int high = 130)
      : blocks(n),
        k(columns),
        codes(16 * n * columns),
        exponents(16 * n * columns / 32),
        packed(n * row_bytes(columns)) {
    Stream s(seed);
    for (int& c : codes) c = static_cast<int>(s.next() % 16);
    for (uint8_t& e : exponents)
      e = static_cast<uint8_t>(static_cast<size_t>(low) +
                               s.next() % static_cast<size_t>(high - low + 1));
    pack();
  }
  static size_t row_bytes(size_t columns) {
    return columns / 128 * 1088 + (columns % 128 == 0 ? 0 : 576);
  }
  void pack() {
    std::memset(packed.data(), 0, packed.size());
    for (size_t row = 0; row < 16 * blocks; ++row) {
      for (size_t i = 0; i < k; ++i) place(row, i);
    }
  }
  void place(size_t row, size_t i) {
    const size_t lane = row % 16, block = i % 128 / 32, in = i % 32;
    uint8_t* const strip = packed.data() + row / 16 * row_bytes(k) + i / 128 * 1088;
    strip[block * 16 + lane] = exponents[(row * k + i) / 32];
    strip[64 + block * 256 + in % 16 / 4 * 64 + lane * 4 + in % 4] |=
        static_cast<uint8_t>(codes[row * k + i] << (in < 16 ? 0 : 4));
  }
  // Returns a power of two, which may be denormal.
  float scale(size_t row, size_t i) const {
    return static_cast<float>(std::ldexp(1.0, exponents[(row * k + i) / 32] - 128));
  }
  int value(size_t row, size_t i) const { return doubled(codes[row * k + i]); }
  float weight(size_t row, size_t i) const {
    return static_cast<float>(value(row, i)) * scale(row, i);
  }

  std::vector<float> times(const float* x) const {
    std::vector<float> y(16 * blocks);
    for (size_t row = 0; row < y.size(); ++row) {
      for (size_t b = 0; b < k; b += 32) {
        const PlainInput in = plain_input(x + b);
        int sum = 0;
        for (size_t i = 0; i < 32; ++i) sum += value(row, b + i) * in.q[i];
        const float factor = scale(row, b) * in.scale;
        y[row] = std::fma(static_cast<float>(sum), factor, y[row]);
      }
    }
    return y;
  }
  std::vector<float> times_wide(const float* x) const {
    std::vector<float> y(16 * blocks);
    for (size_t row = 0; row < y.size(); ++row) {
      for (size_t i = 0; i < k; i += 2) {
        y[row] = std::fma(weight(row, i + 1), x[i + 1], y[row]);
        y[row] = std::fma(weight(row, i), x[i], y[row]);
      }
    }
    return y;
  }
};

// Numbers of inputs that end with a whole strip, or within one.
constexpr size_t kDepths[] = {64, 128, 192, 320, 1088};

void check_vectors(const Kernels& k, const Weights& w, float magnitude) {
  const size_t ldx = w.k / 32 + 1, wide_ld = w.k + 3, width = 16 * w.blocks, ldy = width + 16;
  const Fenced<QuantBlock> quants(kGemvRows * ldx);
  const Fenced<float> x(kGemvRows * wide_ld);
  for (size_t r = 0; r < kGemvRows; ++r) {
    std::vector<float> row = numbers(w.k, w.k + r);
    for (float& v : row) v *= magnitude;
    std::copy(row.begin(), row.end(), x.data() + r * wide_ld);
    k.quantize(row.data(), w.k, quants.data() + r * ldx);
  }
  for (size_t rows = 1; rows <= kGemvRows; ++rows) {
    const Fenced<float> y(rows * ldy), wide(rows * ldy);
    std::fill(y.data(), y.data() + y.size(), kNan);
    std::fill(wide.data(), wide.data() + wide.size(), kNan);
    k.gemv_mxfp4(w.packed.data(), w.blocks, w.k, quants.data(), ldx, y.data(), ldy,
                 static_cast<int>(rows));
    k.gemv_wide_mxfp4(w.packed.data(), w.blocks, w.k, x.data(), wide_ld, wide.data(), ldy,
                      static_cast<int>(rows));
    for (size_t r = 0; r < rows; ++r) {
      const float* const in = x.data() + r * wide_ld;
      ASSERT_TRUE(equal_bits(y.span().subspan(r * ldy, width), w.times(in)))
          << "depth " << w.k << ", blocks " << w.blocks << ", row " << r << " of " << rows;
      ASSERT_TRUE(equal_bits(wide.span().subspan(r * ldy, width), w.times_wide(in)))
          << "widened, depth " << w.k << ", row " << r << " of " << rows;
    }
    ASSERT_TRUE(y.untouched() && wide.untouched());
  }
}

TEST_P(KernelsOfMxfp4, MatrixVectorIsTheChainOverBlocks) {
  for (const size_t depth : kDepths) {
    for (const size_t blocks : {1, 3}) check_vectors(k, Weights(blocks, depth, depth + blocks), 1);
  }
}

// Exponents 0 and 1 give denormal scales, and 252 gives the greatest. Products round and overflow
// like those of any float32.
TEST_P(KernelsOfMxfp4, TheLeastAndTheGreatestExponents) {
  check_vectors(k, Weights(1, 192, 7, 0, 2), 1);
  check_vectors(k, Weights(1, 192, 8, 0, 1), 0x1p-20f);
  check_vectors(k, Weights(1, 192, 9, 0, 2), 0x1p100f);
  check_vectors(k, Weights(1, 192, 10, 250, 252), 1);
  check_vectors(k, Weights(1, 192, 11, 250, 252), 0x1p-90f);
}

// Computes the tile in one go, and continued at the beginning of a strip. Compares both with the
// chain of plain integers.
void check_tile(const Kernels& k, const Weights& w, const Fenced<float>& x, int rows) {
  const size_t depth = w.k, width = 16 * w.blocks, ld = width + 3, cut = depth / 256 * 128,
               stride = depth / 64 * static_cast<size_t>(kExpandedMxfp4);
  const int vectors = static_cast<int>(w.blocks);
  const Fenced<uint8_t> bytes(w.blocks * stride);
  for (size_t b = 0; b < w.blocks; ++b) {
    k.expand_mxfp4(w.packed.data() + b * Weights::row_bytes(depth), depth / 64,
                   bytes.data() + b * stride);
  }
  const Fenced<QuantTile> packed(depth / 32);
  const Fenced<float> y(static_cast<size_t>(rows) * ld), halves(static_cast<size_t>(rows) * ld);
  k.pack_quants(x.data(), depth, rows, depth, packed.data());
  k.tile_mxfp4(packed.data(), bytes.data(), depth, depth,
               {nullptr, 0, y.data(), ld, rows, vectors});
  k.tile_mxfp4(packed.data(), bytes.data(), depth, cut,
               {nullptr, 0, halves.data(), ld, rows, vectors});
  k.tile_mxfp4(packed.data() + cut / 32, bytes.data() + cut / 64 * kExpandedMxfp4, depth,
               depth - cut, {halves.data(), ld, halves.data(), ld, rows, vectors});
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    ASSERT_TRUE(equal_bits(y.span().subspan(r * ld, width), w.times(x.data() + r * depth)))
        << "row " << r << " of " << rows << ", depth " << depth << ", blocks " << w.blocks;
    for (size_t i = width; i < ld; ++i)
      ASSERT_EQ(bits_of(y[r * ld + i]), 0xFFFFFFFFu) << "written past the row";
  }
  ASSERT_TRUE(equal_bits(halves.span(), y.span()));
  ASSERT_TRUE(packed.untouched() && y.untouched() && halves.untouched() && bytes.untouched());
}

TEST_P(KernelsOfMxfp4, TileGivesTheBitsOfPlainIntegers) {
  for (const size_t depth : kDepths) {
    for (const size_t blocks : {1, 2, 3, 4}) {
      const Weights w(blocks, depth, depth + blocks, blocks == 2 ? 0 : 110, blocks == 2 ? 2 : 130);
      for (int rows = 1; rows <= kTileRows; ++rows) {
        check_tile(k, w, Fenced<float>(numbers(static_cast<size_t>(rows) * depth, 11 + depth)),
                   rows);
      }
    }
  }
}

// The largest sums of a block, at which 16-bit integers would come closest to overflowing.
TEST_P(KernelsOfMxfp4, TheLargestSums) {
  for (const int code : {7, 15, 0}) {
    for (const float x : {3.0f, -3.0f}) {
      Weights w(4, 128, 5);
      std::fill(w.codes.begin(), w.codes.end(), code);
      w.pack();
      check_tile(k, w, Fenced<float>(std::vector<float>(kTileRows * 128, x)), kTileRows);
      const std::vector<float> in(128, x);
      std::vector<QuantBlock> quants(4);
      std::vector<float> y(64);
      k.quantize(in.data(), 128, quants.data());
      k.gemv_mxfp4(w.packed.data(), 4, 128, quants.data(), 0, y.data(), 0, 1);
      ASSERT_TRUE(equal_bits(y, w.times(in.data())));
    }
  }
}

TEST_P(KernelsOfMxfp4, PanelsAreWidenedExactly) {
  constexpr size_t kDepth = 320;
  for (const int low : {0, 120, 250}) {
    const Weights w(3, kDepth, 3, low, low + 2);
    for (const size_t k0 : {0, 128, 256}) {
      const size_t kc = k0 == 0 ? kDepth : k0 == 128 ? 128 : 64;
      const Fenced<float> panel(kc * kPanel);
      k.widen_panel_mxfp4(w.packed.data(), 3, kDepth, k0, kc, panel.data());
      for (size_t i = 0; i < kc; ++i) {
        for (size_t row = 0; row < 48; ++row)
          ASSERT_TRUE(same_bits(panel[(i ^ 1) * kPanel + row], w.weight(row, k0 + i)));
        for (size_t row = 48; row < kPanel; ++row)
          ASSERT_EQ(bits_of(panel[i * kPanel + row]), 0xFFFFFFFFu);
      }
      ASSERT_TRUE(panel.untouched());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, KernelsOfMxfp4, testing::ValuesIn(isa_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace stet::test::kernels_of_mxfp4_tests
