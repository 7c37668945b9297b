// Kernels of the K types give the bits of the contract restated in plain C++.
#include <cmath>
#include <cstring>

#include "stet/kernels/numbers.hpp"
#include "tests/support/kernel_testing.hpp"

namespace stet::test::kernels_of_k_types_tests {
namespace {

class KernelsOfKTypes : public EachIsa {};

// ---------------------------------------------------------------- the contract, restated

struct Type {
  const char* name;
  int index;  // index in the kernel table
  int bits;
  size_t inputs;  // inputs of a sub-block
  size_t super_bytes;
};
constexpr Type kTypes[] = {{"q4_k", 0, 4, 32, kSuperBytesQ4K},
                           {"q5_k", 1, 5, 32, kSuperBytesQ5K},
                           {"q6_k", 2, 6, 16, kSuperBytesQ6K}};

// Weights as numbers, and packed as the comment in kernels.hpp describes.
struct SuperWeights {
  Type type;
  size_t blocks, k;
  std::vector<int> u;          // [16 blocks][k]
  std::vector<int> s, t;       // [16 blocks][k / inputs]
  std::vector<uint16_t> d, m;  // [16 blocks][k / 256]
  Fenced<uint8_t> packed;

  SuperWeights(const Type& of, size_t n, size_t columns, uint64_t seed)
      : type(of),
        blocks(n),
        k(columns),
        u(16 * n * columns),
        s(u.size() / of.inputs),
        t(s.size()),
        d(u.size() / 256),
        m(d.size()),
        packed(n * columns / 256 * of.super_bytes) {
    Stream stream(seed);
    for (int& x : u) x = static_cast<int>(stream.next() % (1u << type.bits));
    for (int& x : s)
      x = type.bits == 6 ? static_cast<int>(stream.next() % 256) - 128
                         : static_cast<int>(stream.next() % 64);
    for (int& x : t) x = static_cast<int>(stream.next() % 64);
    for (std::vector<uint16_t>* halves : {&d, &m}) {
      for (uint16_t& x : *halves)
        x = static_cast<uint16_t>((stream.next() & 0x83FF) | (stream.next() % 18) << 10);
    }
    pack();
  }
  void pack() {
    std::memset(packed.data(), 0, packed.size());
    for (size_t row = 0; row < 16 * blocks; ++row) {
      for (size_t i = 0; i < k; ++i) place(row, i);
    }
  }

  size_t sub(size_t row, size_t i) const { return (row * k + i) / type.inputs; }
  void place(size_t row, size_t i) {
    const size_t lane = row % 16, in_super = i % 256, block = in_super / 32, in = in_super % 32;
    uint8_t* const super = packed.data() + (row / 16 * (k / 256) + i / 256) * type.super_bytes;
    std::memcpy(super + 2 * lane, &d[(row * k + i) / 256], 2);
    const unsigned value = static_cast<unsigned>(u[row * k + i]);
    uint8_t* lines;
    if (type.bits == 6) {
      super[64 + in_super / 16 * 16 + lane] = static_cast<uint8_t>(s[sub(row, i)]);
      lines = super + 320 + block * 384;
      const size_t quad = in / 4;
      lines[256 + in / 16 * 64 + 4 * lane + in % 4] |=
          static_cast<uint8_t>(value >> 4 << (2 * (quad % 4)));
    } else {
      std::memcpy(super + 32 + 2 * lane, &m[(row * k + i) / 256], 2);
      if (in == 0) {
        place_six(super + 64, block, lane, s[sub(row, i)]);
        place_six(super + 64, 8 + block, lane, t[sub(row, i)]);
      }
      lines = super + 256 + block * (type.bits == 5 ? 320 : 256);
      if (type.bits == 5) {
        lines[4 * lane + in % 4] |= static_cast<uint8_t>(value >> 4 << (in / 4));
        lines += 64;
      }
    }
    lines[in % 16 / 4 * 64 + 4 * lane + in % 4] |=
        static_cast<uint8_t>((value & 15) << (in < 16 ? 0 : 4));
  }
  static void place_six(uint8_t* lines, size_t v, size_t lane, int value) {
    if (v < 12) {
      lines[v / 4 * 64 + v % 4 * 16 + lane] |= static_cast<uint8_t>(value);
      return;
    }
    for (size_t line = 0; line < 3; ++line)
      lines[line * 64 + (v - 12) * 16 + lane] |=
          static_cast<uint8_t>((value >> (2 * line) & 3) << 6);
  }

  float times(size_t row, const float* x) const {
    float acc = 0;
    for (size_t begin = 0; begin < k; begin += type.inputs) {
      const PlainInput in = plain_input(x + begin / 32 * 32);
      int sum = 0, plain = 0;
      for (size_t i = begin; i < begin + type.inputs; ++i) {
        sum += (u[row * k + i] - (type.bits == 6 ? 32 : 0)) * in.q[i % 32];
        plain += in.q[i % 32];
      }
      const size_t super = (row * k + begin) / 256;
      // The scale is exact in double and in float32.
      const double scale = exact_f16(d[super]) * s[sub(row, begin)];
      acc = std::fma(static_cast<float>(sum), static_cast<float>(scale) * in.scale, acc);
      if (type.bits == 6) continue;
      const double minimum = exact_f16(m[super]) * t[sub(row, begin)];
      acc = std::fma(static_cast<float>(minimum), -(in.scale * static_cast<float>(plain)), acc);
    }
    return acc;
  }
  std::vector<float> times(const float* x) const {
    std::vector<float> y(16 * blocks);
    for (size_t row = 0; row < y.size(); ++row) y[row] = times(row, x);
    return y;
  }
};

std::vector<float> inputs_of(size_t n, uint64_t seed) {
  std::vector<float> x = numbers(n, seed, Fill::wide);
  Stream s(seed + 1);
  for (size_t b = 0; b + kQuantBlock <= n; b += kQuantBlock) {
    const uint64_t kind = s.next() % 8;
    for (size_t i = b; kind < 3 && i < b + kQuantBlock; ++i)
      x[i] = kind == 0 ? 0.0f : kind == 1 ? s.real() * 0x1p-100f : -s.wide() * 0x1p60f;
  }
  return x;
}

TEST_P(KernelsOfKTypes, InputsHaveTheirSums) {
  const size_t n = 320;
  std::vector<float> values = inputs_of(n, 3);
  values[70] = kInf;
  const Fenced<float> x(values);
  const Fenced<SuperInput> y(n / 32);
  k.quantize_super(x.data(), n, y.data());
  for (size_t b = 0; b < n / 32; ++b) {
    const PlainInput expected = plain_input(values.data() + 32 * b);
    int sums[2] = {};
    for (int i = 0; i < kQuantBlock; ++i) {
      const int q =
          static_cast<int8_t>(static_cast<uint32_t>(y[b].quads[i / 4]) >> (i % 4 * 8) & 0xFFu);
      ASSERT_EQ(q, expected.q[i]);
      sums[i / 16] += q;
    }
    ASSERT_TRUE(same_bits(y[b].scale, expected.scale));
    ASSERT_TRUE(same_bits(y[b].offset, -(expected.scale * static_cast<float>(sums[0] + sums[1]))));
    ASSERT_EQ(y[b].sums[0], sums[0]);
    ASSERT_EQ(y[b].sums[1], sums[1]);
  }
  ASSERT_TRUE(y.untouched());
}

TEST_P(KernelsOfKTypes, MatrixVectorIsTheChainOverSubBlocks) {
  for (const Type& type : kTypes) {
    for (size_t depth : {256, 512, 1280}) {
      for (size_t blocks : {1, 2, 3}) {
        const SuperWeights w(type, blocks, depth, depth + blocks);
        const size_t ldx = depth / 32 + 1, width = 16 * blocks, ldy = width + 16;
        const Fenced<SuperInput> in(kGemvRows * ldx);
        std::vector<std::vector<float>> x, expected;
        for (size_t r = 0; r < kGemvRows; ++r) {
          x.push_back(inputs_of(depth, depth + r));
          expected.push_back(w.times(x[r].data()));
          k.quantize_super(x[r].data(), depth, in.data() + r * ldx);
        }
        for (size_t rows = 1; rows <= kGemvRows; ++rows) {
          const Fenced<float> y(rows * ldy);
          k.gemv_super[type.index](w.packed.data(), blocks, depth, in.data(), ldx, y.data(), ldy,
                                   static_cast<int>(rows));
          for (size_t r = 0; r < rows; ++r) {
            ASSERT_TRUE(equal_bits(y.span().subspan(r * ldy, width), expected[r]))
                << type.name << ", depth " << depth << ", blocks " << blocks << ", row " << r
                << " of " << rows;
          }
          ASSERT_TRUE(y.untouched());
        }
      }
    }
  }
}

// Computes the tile whole and continued in the middle of the chain.
void check_tile(const Kernels& k, const SuperWeights& w, const Fenced<float>& x, int rows) {
  const size_t depth = w.k, width = 16 * w.blocks, ld = width + 3, cut = depth / 64 * 32;
  const int vectors = static_cast<int>(w.blocks);
  const Fenced<uint8_t> bytes(w.blocks * depth / 32 * static_cast<size_t>(kExpandedBlock));
  k.expand_super[w.type.index](w.packed.data(), w.blocks * depth / 256, bytes.data());
  const auto tile = k.tile_super[w.type.index];
  const Fenced<SuperTile> packed(depth / 32);
  const Fenced<float> y(static_cast<size_t>(rows) * ld), halves(static_cast<size_t>(rows) * ld);
  k.pack_super(x.data(), depth, rows, depth, packed.data());
  tile(packed.data(), bytes.data(), depth, depth, {nullptr, 0, y.data(), ld, rows, vectors});
  const Fetch next = {packed.data(), depth * 40, size_t{1} << 40,
                      w.blocks};  // prefetching unmapped memory changes nothing
  tile(packed.data(), bytes.data(), depth, cut,
       {nullptr, 0, halves.data(), ld, rows, vectors, next});
  tile(packed.data() + cut / 32, bytes.data() + cut / 32 * kExpandedBlock, depth, depth - cut,
       {halves.data(), ld, halves.data(), ld, rows, vectors});
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    ASSERT_TRUE(equal_bits(y.span().subspan(r * ld, width), w.times(x.data() + r * depth)))
        << w.type.name << ", row " << r << " of " << rows << ", depth " << depth << ", blocks "
        << w.blocks;
    for (size_t i = width; i < ld; ++i)
      ASSERT_EQ(bits_of(y[r * ld + i]), 0xFFFFFFFFu) << "written past the row";
  }
  ASSERT_TRUE(equal_bits(halves.span(), y.span()));
  ASSERT_TRUE(packed.untouched() && y.untouched() && halves.untouched() && bytes.untouched());
}

TEST_P(KernelsOfKTypes, TileGivesTheBitsOfTheChain) {
  for (const Type& type : kTypes) {
    for (size_t depth : {256, 768}) {
      for (size_t blocks : {1, 2, 3, 4}) {
        const SuperWeights w(type, blocks, depth, depth + blocks);
        for (int rows = 1; rows <= kTileRows; ++rows)
          check_tile(k, w, Fenced<float>(inputs_of(static_cast<size_t>(rows) * depth, 11 + depth)),
                     rows);
      }
    }
  }
}

// The largest sums of both signs would overflow 16-bit integers.
TEST_P(KernelsOfKTypes, TheLargestSumsDoNotSaturate) {
  for (const Type& type : kTypes) {
    for (const bool largest : {true, false}) {
      for (const float sign : {3.0f, -3.0f}) {
        SuperWeights w(type, 4, 256, 5);
        for (int& u : w.u) u = largest ? (1 << type.bits) - 1 : 0;
        w.pack();
        const Fenced<float> x(std::vector<float>(kTileRows * 256, sign));
        check_tile(k, w, x, kTileRows);
        std::vector<SuperInput> in(8);
        std::vector<float> y(64);
        k.quantize_super(x.data(), 256, in.data());
        k.gemv_super[type.index](w.packed.data(), 4, 256, in.data(), 0, y.data(), 0, 1);
        ASSERT_TRUE(equal_bits(y, w.times(x.data()))) << type.name;
      }
    }
  }
}

TEST_P(KernelsOfKTypes, AnInputThatIsNotFiniteMakesTheOutputsNan) {
  for (const Type& type : kTypes) {
    const SuperWeights w(type, 1, 256, 1);
    std::vector<float> x = numbers(256, 3);
    x[40] = kInf;
    std::vector<SuperInput> in(8);
    std::vector<float> y(16);
    k.quantize_super(x.data(), 256, in.data());
    k.gemv_super[type.index](w.packed.data(), 1, 256, in.data(), 0, y.data(), 0, 1);
    for (const float value : y) EXPECT_NE(value, value);
  }
}

// ---------------------------------------------------------------- blocks of a file

// Returns value v of twelve bytes that hold eight 6-bit scales and eight 6-bit minimums.
int six_bits(const uint8_t* s, size_t v) {
  const size_t i = v % 8, high = v / 8 * 4;
  return i < 4 ? s[high + i] & 63 : (s[4 + i] >> high & 15) | (s[high + i - 4] >> 6) << 4;
}

// Returns number i of a super-block in ggml's layout.
float number_of(const Type& type, const uint8_t* b, size_t i) {
  const auto half = [&](size_t at) {
    uint16_t bits;
    std::memcpy(&bits, b + at, sizeof bits);
    return widen_f16(bits);
  };
  if (type.bits == 6) {
    const size_t part = i % 128 / 32, in = i % 32;
    const int low = b[i / 128 * 64 + part % 2 * 32 + in] >> part / 2 * 4 & 15,
              high = b[128 + i / 128 * 32 + in] >> 2 * part & 3;
    const float scale = half(208) * static_cast<float>(static_cast<int8_t>(b[192 + i / 16]));
    return scale * static_cast<float>((low | high << 4) - 32);
  }
  const size_t block = i / 32, nibbles = type.bits == 4 ? 16 : 48;
  const int low = b[nibbles + block / 2 * 32 + i % 32] >> block % 2 * 4 & 15,
            fifth = type.bits == 4 ? 0 : b[16 + i % 32] >> block & 1;
  const float scale = half(0) * static_cast<float>(six_bits(b + 4, block)),
              minimum = half(2) * static_cast<float>(six_bits(b + 4, 8 + block));
  const float product = scale * static_cast<float>(low | fifth << 4);
  return product - minimum;
}

TEST_P(KernelsOfKTypes, BlocksOfAFileAreTheNumbersOfTheirFormula) {
  constexpr size_t kSupers = 40, kBytes[] = {144, 176, 210};
  for (const Type& type : kTypes) {
    const size_t bytes = kBytes[type.index];
    const Fenced<uint8_t> blocks(kSupers * bytes);
    Stream stream(bytes);
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<uint8_t>(stream.next());
    for (size_t s = 0; s < kSupers; ++s) {  // keeps d and m finite
      uint8_t* const b = blocks.data() + s * bytes;
      for (const size_t at : {size_t{1}, size_t{3}, bytes - 1}) {
        if ((type.bits == 6) == (at == bytes - 1)) b[at] &= 0xBF;
      }
    }
    std::vector<float> expected;
    for (size_t i = 0; i < kSupers * 256; ++i)
      expected.push_back(number_of(type, blocks.data() + i / 256 * bytes, i % 256));
    const Fenced<float> y(expected.size());
    k.dequantize_super[type.index](blocks.data(), kSupers, y.data());
    ASSERT_TRUE(equal_bits(y.span(), expected)) << type.name;
    ASSERT_TRUE(y.untouched());
  }
}

INSTANTIATE_TEST_SUITE_P(All, KernelsOfKTypes, testing::ValuesIn(isa_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace stet::test::kernels_of_k_types_tests
