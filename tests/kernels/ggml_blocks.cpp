// ggml's blocks, packed for the kernels, decode to the numbers of ggml's reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "src/checkpoint/fingerprint.hpp"
#include "src/checkpoint/tensor_types.hpp"
#include "src/gguf/transcode.hpp"
#include "stet/base/error.hpp"
#include "stet/kernels/ggml.hpp"
#include "stet/kernels/numbers.hpp"
#include "stet/model/contract.hpp"
#include "stet/model/matrix.hpp"
#include "tests/support/files.hpp"
#include "tests/support/kernel_testing.hpp"

namespace stet::test::ggml_blocks_tests {
namespace {

constexpr DType kBlockTypes[] = {DType::q8_0, DType::q4_0, DType::q5_0, DType::mxfp4,
                                 DType::q4_k, DType::q5_k, DType::q6_k};

struct Tensor {
  std::vector<std::byte> bytes;
  std::vector<float> values;
  TensorView view;

  // Any bits form a valid block; scales are kept finite.
  Tensor(DType dtype, size_t rows, size_t columns, uint64_t seed) {
    const GgmlType type = *ggml_type(ggml_number(dtype));
    const size_t blocks = rows * columns / type.elements;
    Stream s(seed);
    bytes.resize(blocks * type.bytes);
    for (std::byte& b : bytes) b = static_cast<std::byte>(s.next());
    for (size_t i = 0; i < blocks; ++i) {
      if (dtype == DType::mxfp4) {
        bytes[i * type.bytes] = static_cast<std::byte>(s.next() % 253);
        continue;
      }
      const size_t at = dtype == DType::q6_k ? 208 : 0;
      const bool two = dtype == DType::q4_k || dtype == DType::q5_k;
      for (size_t half = 0; half < (two ? 2u : 1u); ++half)
        bytes[i * type.bytes + at + 2 * half + 1] &= std::byte{0xBB};
    }
    values.resize(rows * columns);
    dequantize_ggml(ggml_number(dtype), bytes.data(), blocks, values.data());
    view = {"t",
            dtype,
            dtype_name(dtype),
            {static_cast<int64_t>(rows), static_cast<int64_t>(columns)},
            bytes};
  }
};

TEST(GgmlBlocks, RowsAreTheReferencesNumbers) {
  for (const DType dtype : kBlockTypes) {
    for (const size_t rows : {1, 16, 37}) {
      for (const size_t columns : {256, 768}) {
        const Tensor t(dtype, rows, columns, rows + columns), u(dtype, 5, columns, 9);
        const Matrix m({&t.view, &u.view}, columns, 2);
        ASSERT_EQ(m.rows(), rows + 5);
        ASSERT_EQ(m.type(), weight_type(dtype));
        std::vector<float> row(columns);
        for (size_t r = 0; r < m.rows(); ++r) {
          m.gather(r, row.data());
          const float* const expected =
              r < rows ? &t.values[r * columns] : &u.values[(r - rows) * columns];
          ASSERT_TRUE(equal_bits(row, std::span(expected, columns)))
              << dtype_name(dtype) << " row " << r;
        }
      }
    }
  }
}

TEST(GgmlBlocks, HalfAStrip) {
  for (const DType dtype : {DType::q8_0, DType::q4_0, DType::q5_0, DType::mxfp4}) {
    const Tensor t(dtype, 3, 96, 4);
    const Matrix m({&t.view}, 96, 1);
    std::vector<float> row(96);
    for (size_t r = 0; r < 3; ++r) {
      m.gather(r, row.data());
      ASSERT_TRUE(equal_bits(row, std::span(&t.values[r * 96], 96)));
    }
  }
}

TEST(GgmlBlocks, StackedMatricesHaveTheRowsOfAll) {
  const Tensor t(DType::q4_k, 32, 256, 4), u(DType::q6_k, 7, 256, 5);
  std::vector<Matrix> parts;
  parts.push_back(Matrix({&t.view}, 256, 1));
  parts.push_back(Matrix({&u.view}, 256, 1));
  const size_t bytes = parts[0].bytes() + parts[1].bytes();
  const Matrix m = Matrix::stacked(std::move(parts));
  EXPECT_EQ(m.rows(), 39u);
  EXPECT_EQ(m.bytes(), bytes);
  std::vector<float> row(256);
  m.gather(38, row.data());
  EXPECT_TRUE(equal_bits(row, std::span(&u.values[6 * 256], 256)));
}

// quantize_row_mxfp4_ref of ggml-quants.c, for one block.
std::array<uint8_t, 17> mxfp4_by_reference(const float* x) {
  constexpr std::array<int, 16> kValues = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  float largest = 0;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(x[i]));
  std::array<uint8_t, 17> block = {};
  if (largest > 0) block[0] = static_cast<uint8_t>(std::floor(std::log2(largest)) - 2 + 127);
  const float d = std::ldexp(1.0f, block[0] - 128);
  const auto nearest = [&](float v) {
    size_t best = 0;
    const auto error = [&](size_t i) { return std::fabs(static_cast<float>(kValues[i]) * d - v); };
    for (size_t i = 1; i < kValues.size(); ++i) best = error(i) < error(best) ? i : best;
    return best;
  };
  for (size_t i = 0; i < 16; ++i)
    block[1 + i] = static_cast<uint8_t>(nearest(x[i]) | nearest(x[i + 16]) << 4);
  return block;
}

std::array<uint8_t, 17> mxfp4_of(const float* x) {
  std::array<uint8_t, 17> block;
  quantize_ggml(ggml_number(DType::mxfp4), x, 1, block.data());
  return block;
}

// The largest number of a block decides its exponent; those next to powers of two decide how the
// logarithm is rounded. The others are multiples of an eighth of the scale, and so often ties.
TEST(GgmlBlocks, Mxfp4IsRoundedAsTheReferenceRoundsIt) {
  Stream s(5);
  for (int power = -120; power <= 126; ++power) {
    for (int step = -40; step <= 40; ++step) {
      float largest = std::ldexp(1.0f, power);
      const float towards = step < 0 ? 0.0f : std::numeric_limits<float>::infinity();
      for (int i = 0; i < std::abs(step); ++i) largest = std::nextafter(largest, towards);
      std::array<float, 32> x;
      for (float& v : x) {
        const int eighths = static_cast<int>(s.next() % 127) - 63;
        v = static_cast<float>(eighths == 0 ? 1 : eighths) * std::ldexp(1.0f, power - 6);
      }
      x[s.next() % 32] = s.next() % 2 == 0 ? largest : -largest;
      ASSERT_EQ(mxfp4_of(x.data()), mxfp4_by_reference(x.data())) << power << " " << step;
    }
  }
  for (int i = 0; i < 20000; ++i) {
    std::array<float, 32> x;
    for (float& v : x) v = static_cast<float>(static_cast<int>(s.next() % 20001) - 10000) * 3e-5f;
    ASSERT_EQ(mxfp4_of(x.data()), mxfp4_by_reference(x.data())) << i;
  }
}

// Blocks with a 4 or a 6 keep their bytes, too, except that the code of -0, which decodes to 0, becomes
// that of 0.
TEST(GgmlBlocks, NumbersOfMxfp4AreRoundedToThemselves) {
  const Tensor t(DType::mxfp4, 200, 256, 3);
  for (size_t at = 0; at < t.values.size(); at += 32) {
    const std::array<uint8_t, 17> block = mxfp4_of(&t.values[at]);
    std::array<float, 32> back;
    dequantize_ggml(ggml_number(DType::mxfp4), block.data(), 1, back.data());
    ASSERT_TRUE(equal_bits(back, std::span(&t.values[at], 32))) << at;
    std::array<uint8_t, 17> expected;
    std::memcpy(expected.data(), &t.bytes[at / 32 * 17], expected.size());
    bool large = false;
    for (size_t i = 1; i < expected.size(); ++i) {
      for (const int shift : {0, 4}) {
        const int code = expected[i] >> shift & 15;
        large = large || (code & 7) >= 6;
        if (code == 8) expected[i] = static_cast<uint8_t>(expected[i] & 0xF0 >> shift);
      }
    }
    if (!large) continue;
    ASSERT_EQ(block, expected) << at;
  }
}

TEST(GgmlBlocks, Mxfp4HasNoExponentOfInfiniteWeights) {
  std::array<float, 32> x = {std::numeric_limits<float>::max(), -3e38f, 1e-45f};
  EXPECT_EQ(mxfp4_of(x.data())[0], 252);
  x = {1e-45f, -0.0f};
  const std::array<uint8_t, 17> least = mxfp4_of(x.data());
  EXPECT_EQ(least[0], 0);
  EXPECT_EQ(least[1], 0);
  EXPECT_EQ(least[2], 8);
}

TEST(GgmlBlocks, AreNamedByTheirValues) {
  for (const DType dtype : kBlockTypes) {
    const Tensor t(dtype, 37, 256, 8);
    const TensorView wide = {"t", DType::f32, "F32", t.view.shape,
                             std::as_bytes(std::span(t.values))};
    const Sha256 a = digest_matrix(t.view, 2), b = digest_matrix(wide, 1);
    EXPECT_EQ(a, b);
  }
}

// The fingerprint's type is the narrowest that holds the whole row. The first values of a row fit
// bfloat16. Depending on `scale`, its last ones fit bfloat16, float16 or only float32.
TEST(GgmlBlocks, FingerprintsCoverTheValuesOfWholeRows) {
  constexpr size_t kColumns = 8192, kBlock = 34;
  for (const float scale : {1.0f, 1.125f, 1 + 1.0f / 1024}) {
    std::vector<uint8_t> blocks(17 * kColumns / 32 * kBlock);
    for (size_t at = 0; at < blocks.size(); at += kBlock) {
      const uint16_t d = round_f16(at / kBlock % (kColumns / 32) < 200 ? 1.0f : scale);
      std::memcpy(&blocks[at], &d, sizeof d);
      std::fill_n(blocks.begin() + static_cast<long>(at) + 2, 32, uint8_t{127});
    }
    std::vector<float> values(17 * kColumns);
    dequantize_ggml(8, blocks.data(), blocks.size() / kBlock, values.data());
    TensorView narrow{"t", DType::q8_0, "Q8_0", {17, kColumns}, std::as_bytes(std::span(blocks))},
        wide{"t", DType::f32, "F32", {17, kColumns}, std::as_bytes(std::span(values))};
    const Sha256 a = digest_matrix(narrow, 2), b = digest_matrix(wide, 1);
    EXPECT_EQ(a, b) << scale;
    // The values as bfloat16 or, for the larger scales, as float16. The last scale needs float32.
    std::vector<uint16_t> as_it_is;
    TensorView published{"t", DType::bf16, "BF16", {17, kColumns}, {}};
    if (scale > 1) published.dtype = DType::f16;
    for (const float x : values) as_it_is.push_back(scale > 1 ? round_f16(x) : round_bf16(x));
    published.bytes = std::as_bytes(std::span(as_it_is));
    EXPECT_EQ(a == digest_matrix(published, 1), scale == 1 || scale == 1.125f);
  }
}

// Block types without a kernel are transcoded to types that hold the same numbers.
TEST(GgmlBlocks, TranscodedBlocksHaveTheSameNumbers) {
  struct Case {
    uint32_t from, to;
    void (*transcode)(const std::byte*, std::byte*);
    size_t scale_at;
  };
  for (const Case& c : {Case{6, 8, q5_0_as_q8_0, 0}, Case{20, 8, iq4_nl_as_q8_0, 0},
                        Case{11, 14, q3_k_as_q6_k, 108}}) {
    const GgmlType from = *ggml_type(c.from), to = *ggml_type(c.to);
    ASSERT_EQ(from.elements, to.elements);
    Stream s(c.from);
    for (int i = 0; i < 1000; ++i) {
      std::vector<std::byte> block(from.bytes), other(to.bytes);
      for (std::byte& b : block) b = static_cast<std::byte>(s.next());
      block[c.scale_at + 1] &= std::byte{0xBB};
      std::vector<float> expected(from.elements), found(to.elements);
      c.transcode(block.data(), other.data());
      dequantize_ggml(c.from, block.data(), 1, expected.data());
      dequantize_ggml(c.to, other.data(), 1, found.data());
      ASSERT_TRUE(equal_bits(found, expected)) << from.name;
    }
  }
}

TEST(GgmlBlocks, NamesListTheTypesOfTensors) {
  using Types = std::vector<std::pair<std::string, WeightType>>;
  Types types = {{"embed_tokens.weight", WeightType::q6_k}};
  for (int layer = 0; layer < 3; ++layer) {
    const std::string at = "layers." + std::to_string(layer) + ".";
    for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj"})
      types.emplace_back(at + name + ".weight", WeightType::q4_k);
    types.emplace_back(at + "self_attn.v_proj.weight", WeightType::q6_k);
    types.emplace_back(at + "mlp.down_proj.weight",
                       layer == 1 ? WeightType::q6_k : WeightType::q4_k);
  }
  const std::string name = types_text(types);
  EXPECT_EQ(name, "ggml(*=q4_k,attn_v=q6_k,blk.1.ffn_down=q6_k,token_embd=q6_k)");
  EXPECT_EQ(parse_contract(name), Contract::ggml);
  EXPECT_EQ(parse_contract_name(name)->text(), name);
  EXPECT_EQ(types_text({{"lm_head.weight", WeightType::q8}}), "ggml(*=q8_0)");
  // The name lists q5 as q8_0, because both compute the same.
  EXPECT_EQ(types_text({{"lm_head.weight", WeightType::q5}, {"norm.weight", WeightType::q8}}),
            "ggml(*=q8_0)");
  // This list is too long for a name.
  Types many;
  for (int layer = 0; layer < 1000; ++layer)
    many.emplace_back("layers." + std::to_string(layer) + ".mlp.down_proj.weight",
                      layer % 2 == 0 ? WeightType::q6_k : WeightType::q4_k);
  const std::string digest = types_text(many);
  EXPECT_TRUE(digest.starts_with("ggml(*=sha256-")) << digest;
  EXPECT_TRUE(parse_contract_name(digest).has_value());
  many[0].second = WeightType::q4_k;
  EXPECT_NE(types_text(many), digest);
}

}  // namespace
}  // namespace stet::test::ggml_blocks_tests
