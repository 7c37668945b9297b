// Packed weights byte for byte, conversions over all 16-bit numbers, and linear(), which gives the
// same bits for any number of rows.
#include "stet/model/matrix.hpp"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/blas/openblas.hpp"
#include "stet/kernels/ggml.hpp"
#include "stet/kernels/numbers.hpp"
#include "stet/model/ops.hpp"
#include "stet/model/product.hpp"
#include "tests/support/kernel_testing.hpp"

namespace stet::test::matrix_tests {
namespace {

// A tensor whose bytes start at an odd address.
struct Tensor {
  std::vector<std::byte> storage;
  TensorView view;

  Tensor(DType dtype, size_t rows, size_t columns, const void* values) {
    const size_t bytes = rows * columns * dtype_size(dtype);
    storage.resize(bytes + 1);
    if (bytes != 0) std::memcpy(storage.data() + 1, values, bytes);
    view.name = "w";
    view.dtype = dtype;
    view.dtype_text = dtype_name(dtype);
    view.shape = {static_cast<int64_t>(rows), static_cast<int64_t>(columns)};
    view.bytes = std::span<const std::byte>(storage).subspan(1);
  }
  Tensor(const Tensor&) = delete;
};

const std::byte* packed_bytes(const Matrix& m) { return static_cast<const std::byte*>(m.block(0)); }

// ---------------------------------------------------------------- packing

// 18 rows of 3 columns of float32: [2 blocks][4][16], element (n, k) at block n / 16, lane n % 16.
TEST(Packing, Float32Bytes) {
  std::vector<float> w(18 * 3);
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i + 1);
  const Tensor t(DType::f32, 18, 3, w.data());
  const Matrix m({&t.view}, 3, 1);
  EXPECT_EQ(m.rows(), 18u);
  EXPECT_EQ(m.columns(), 3u);
  EXPECT_EQ(m.depth(), 4u);
  EXPECT_EQ(m.blocks(), 2u);
  EXPECT_EQ(m.type(), WeightType::f32);
  ASSERT_EQ(m.bytes(), 2u * 4 * 16 * 4);
  std::vector<float> expected(2 * 4 * 16, 0.0f);
  for (size_t n = 0; n < 18; ++n) {
    for (size_t k = 0; k < 3; ++k) expected[(n / 16 * 4 + k) * 16 + n % 16] = w[n * 3 + k];
  }
  EXPECT_EQ(expected[0], 1.0f);
  EXPECT_EQ(expected[1], 4.0f);        // row 1, column 0
  EXPECT_EQ(expected[16], 2.0f);       // row 0, column 1
  EXPECT_EQ(expected[64 + 1], 52.0f);  // row 17, column 0
  EXPECT_EQ(std::memcmp(packed_bytes(m), expected.data(), m.bytes()), 0);
}

// 17 rows of 5 columns of 16-bit weights: [2 blocks][3 pairs][16 lanes][2], little-endian.
TEST(Packing, SixteenBitBytes) {
  for (DType dtype : {DType::bf16, DType::f16}) {
    std::vector<uint16_t> w(17 * 5);
    for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<uint16_t>(0x4000 + i);
    const Tensor t(dtype, 17, 5, w.data());
    const Matrix m({&t.view}, 5, 1);
    EXPECT_EQ(m.type(), dtype == DType::bf16 ? WeightType::bf16 : WeightType::f16);
    EXPECT_EQ(m.depth(), 6u);
    ASSERT_EQ(m.bytes(), 2u * 3 * 16 * 2 * 2);
    std::vector<std::byte> expected(m.bytes(), std::byte{0});
    for (size_t n = 0; n < 17; ++n) {
      for (size_t k = 0; k < 5; ++k) {
        const size_t at = (((n / 16 * 3 + k / 2) * 16 + n % 16) * 2 + k % 2) * 2;
        expected[at] = static_cast<std::byte>(w[n * 5 + k] & 0xFF);
        expected[at + 1] = static_cast<std::byte>(w[n * 5 + k] >> 8);
      }
    }
    EXPECT_EQ(std::memcmp(packed_bytes(m), expected.data(), m.bytes()), 0);
    // The packed bytes begin with elements 0 and 1 of the tensor, which are in row 0. Elements 5 and
    // 6, the first two of row 1, follow.
    const uint8_t head[] = {0x00, 0x40, 0x01, 0x40, 0x05, 0x40, 0x06, 0x40};
    EXPECT_EQ(std::memcmp(packed_bytes(m), head, sizeof head), 0);
    // The last column of row 16 has a zero as its partner. The 15 missing rows are zero.
    const std::byte* last = packed_bytes(m) + (1 * 3 + 2) * 64;
    const uint8_t tail[] = {0x54, 0x40, 0, 0, 0, 0, 0, 0};
    EXPECT_EQ(std::memcmp(last, tail, sizeof tail), 0);
  }
}

// Parts are stacked without a gap: a block may hold the end of one part and the beginning of the
// next.
TEST(Packing, PartsAreStacked) {
  const std::vector<float> w = numbers(40 * 7, 1);
  const Tensor whole(DType::f32, 40, 7, w.data()), a(DType::f32, 5, 7, w.data()),
      b(DType::f32, 30, 7, w.data() + 35), c(DType::f32, 5, 7, w.data() + 245);
  const Matrix m({&whole.view}, 7, 1), stacked({&a.view, &b.view, &c.view}, 7, 1);
  ASSERT_EQ(m.bytes(), stacked.bytes());
  EXPECT_EQ(std::memcmp(packed_bytes(m), packed_bytes(stacked), m.bytes()), 0);
}

TEST(Packing, DoesNotDependOnThreads) {
  for (size_t columns : {1, 2, 127, 128, 129, 257, 300}) {
    Stream s(columns);
    std::vector<uint16_t> w(75 * columns);
    for (uint16_t& x : w) x = static_cast<uint16_t>(s.next());
    const Tensor t(DType::bf16, 75, columns, w.data());
    const Matrix one({&t.view}, columns, 1);
    for (int threads : {2, 3, 8}) {
      const Matrix m({&t.view}, columns, threads);
      ASSERT_EQ(std::memcmp(packed_bytes(one), packed_bytes(m), m.bytes()), 0) << threads;
    }
  }
}

// A tensor stored as [columns][rows] packs to the bytes of its transpose.
TEST(Packing, TransposedTensors) {
  const std::pair<size_t, size_t> shapes[] = {{1, 1},  {1, 5},   {16, 2},
                                              {17, 3}, {48, 16}, {75, 130}};
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const auto& [rows, columns] : shapes) {
      const size_t size = dtype_size(dtype);
      Stream s(rows + columns);
      std::vector<uint8_t> straight(rows * columns * size), turned(straight.size());
      for (uint8_t& byte : straight) byte = static_cast<uint8_t>(s.next());
      for (size_t n = 0; n < rows; ++n) {
        for (size_t k = 0; k < columns; ++k) {
          std::memcpy(turned.data() + (k * rows + n) * size,
                      straight.data() + (n * columns + k) * size, size);
        }
      }
      const Tensor plain(dtype, rows, columns, straight.data()),
          stored(dtype, columns, rows, turned.data());
      const Matrix expected({&plain.view}, columns, 1);
      for (int threads : {1, 3}) {
        const Matrix m = Matrix::transposed(stored.view, threads);
        EXPECT_EQ(m.rows(), rows);
        EXPECT_EQ(m.columns(), columns);
        EXPECT_EQ(m.type(), expected.type());
        ASSERT_EQ(m.bytes(), expected.bytes());
        EXPECT_EQ(std::memcmp(packed_bytes(m), packed_bytes(expected), m.bytes()), 0)
            << rows << " x " << columns;
      }
    }
  }
}

TEST(Packing, GatherReadsRowsBack) {
  for (size_t columns : {1, 2, 5, 16, 33}) {
    Stream s(columns);
    std::vector<uint16_t> half(20 * columns);
    for (uint16_t& x : half) x = static_cast<uint16_t>(s.next());
    const std::vector<float> wide = numbers(20 * columns, 3, Fill::special);
    const Tensor bf16(DType::bf16, 20, columns, half.data()),
        f16(DType::f16, 20, columns, half.data()), f32(DType::f32, 20, columns, wide.data());
    const Matrix mb({&bf16.view}, columns, 1), mh({&f16.view}, columns, 1),
        mf({&f32.view}, columns, 1);
    for (size_t row = 0; row < 20; ++row) {
      const Fenced<float> out(columns);
      mf.gather(row, out.data());
      ASSERT_EQ(std::memcmp(out.data(), wide.data() + row * columns, columns * 4), 0);
      mb.gather(row, out.data());
      for (size_t k = 0; k < columns; ++k)
        ASSERT_TRUE(same_bits(out[k], static_cast<float>(exact_bf16(half[row * columns + k]))));
      mh.gather(row, out.data());
      for (size_t k = 0; k < columns; ++k)
        ASSERT_TRUE(same_bits(out[k], static_cast<float>(exact_f16(half[row * columns + k]))));
      ASSERT_TRUE(out.untouched());
    }
  }
}

// ---------------------------------------------------------------- conversions

struct Format {
  const char* name;
  float (*widen)(uint16_t);
  uint16_t (*round)(float);
  double (*exact)(uint16_t);
  uint16_t infinity;
  double beyond;  // the number after the largest; overflow rounds as if it existed
};
constexpr Format kFormats[] = {{"bf16", widen_bf16, round_bf16, exact_bf16, 0x7F80, 0x1p128},
                               {"f16", widen_f16, round_f16, exact_f16, 0x7C00, 65536.0}};

// Finds the nearest number of the format by search, ties to the even pattern.
uint16_t nearest(const Format& f, const std::vector<double>& values, float x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::fabs(x);
  if (magnitude >= f.beyond) return static_cast<uint16_t>(sign | f.infinity);
  const size_t above = static_cast<size_t>(
      std::upper_bound(values.begin(), values.end(), magnitude) - values.begin());
  const size_t below = above - 1;
  const double down = magnitude - values[below], up = values[above] - magnitude;
  const bool take_above = up < down || (up == down && above % 2 == 0);
  return static_cast<uint16_t>(sign | (take_above ? above : below));
}

// Returns the magnitudes of the bit patterns from 0 up to infinity, in order. f.beyond, the number
// after the largest finite one, stands for infinity.
std::vector<double> magnitudes(const Format& f) {
  std::vector<double> values;
  for (uint16_t bits = 0; bits < f.infinity; ++bits) values.push_back(f.exact(bits));
  values.push_back(f.beyond);
  return values;
}

TEST(Conversions, AllSixteenBitNumbersWidenExactly) {
  for (const Format& f : kFormats) {
    for (uint32_t i = 0; i < 65536; ++i) {
      const uint16_t bits = static_cast<uint16_t>(i);
      const float x = f.widen(bits);
      if ((bits & 0x7FFF) > f.infinity) {
        ASSERT_TRUE(std::isnan(x)) << f.name << " " << i;
        ASSERT_EQ(std::signbit(x), bits >> 15 != 0) << f.name << " " << i;
        ASSERT_TRUE(std::isnan(f.widen(f.round(x)))) << f.name << " " << i;
      } else {
        ASSERT_EQ(bits_of(x), bits_of(static_cast<float>(f.exact(bits)))) << f.name << " " << i;
        ASSERT_EQ(f.round(x), bits) << f.name << " " << i;
      }
    }
  }
}

TEST(Conversions, RoundingIsToNearestEven) {
  for (const Format& f : kFormats) {
    const std::vector<double> values = magnitudes(f);
    for (uint64_t at = 0; at < uint64_t{1} << 32; at += 4099) {
      const float x = float_of(static_cast<uint32_t>(at));
      if (std::isnan(x)) continue;
      ASSERT_EQ(f.round(x), nearest(f, values, x)) << f.name << " " << std::hexfloat << x;
    }
  }
}

// The midpoint between any two neighbours, and the floats on either side of it.
TEST(Conversions, TiesOfAllNeighbours) {
  for (const Format& f : kFormats) {
    const std::vector<double> values = magnitudes(f);
    for (size_t i = 0; i + 1 < values.size(); ++i) {
      const float middle = static_cast<float>((values[i] + values[i + 1]) / 2);
      ASSERT_EQ(static_cast<double>(middle), (values[i] + values[i + 1]) / 2);
      const uint16_t low = static_cast<uint16_t>(i), high = static_cast<uint16_t>(i + 1);
      for (uint32_t sign : {0u, 0x80000000u}) {
        const auto rounded = [&](float x) {
          return f.round(float_of(bits_of(x) | sign)) ^ sign >> 16;
        };
        ASSERT_EQ(rounded(middle), i % 2 == 0 ? low : high) << f.name << " " << i;
        ASSERT_EQ(rounded(std::nextafter(middle, 0.0f)), low) << f.name << " " << i;
        ASSERT_EQ(rounded(std::nextafter(middle, kInf)), high) << f.name << " " << i;
      }
    }
  }
}

TEST(Conversions, EdgesByName) {
  EXPECT_EQ(round_bf16(1.0f), 0x3F80);
  EXPECT_EQ(round_bf16(0x1.fffffep127f), 0x7F80);  // overflow
  EXPECT_EQ(round_bf16(0x1.fefffep127f), 0x7F80 - 1);
  EXPECT_EQ(round_bf16(kInf), 0x7F80);
  EXPECT_EQ(round_bf16(-0.0f), 0x8000);
  EXPECT_EQ(round_bf16(0x1p-134f), 0x0000);  // a tie between 0 and the smallest denormal
  EXPECT_EQ(round_f16(65504.0f), 0x7BFF);
  EXPECT_EQ(round_f16(65519.996f), 0x7BFF);
  EXPECT_EQ(round_f16(65520.0f), 0x7C00);
  EXPECT_EQ(round_f16(-kInf), 0xFC00);
  EXPECT_EQ(round_f16(0x1p-25f), 0x0000);
  EXPECT_EQ(round_f16(0x1.000002p-25f), 0x0001);
  EXPECT_EQ(round_f16(0x1p-149f), 0x0000);
  EXPECT_EQ(round_f16(-0x1p-149f), 0x8000);
  // NaNs whose payload lies only in the bits that are cut off.
  EXPECT_EQ(round_bf16(float_of(0x7F800001)), 0x7FC0);
  EXPECT_EQ(round_bf16(float_of(0xFF800001)), 0xFFC0);
  EXPECT_EQ(round_f16(float_of(0x7F800001)), 0x7E00);
  EXPECT_EQ(round_f16(float_of(0xFFFFFFFF)), 0xFFFF);
}

// ---------------------------------------------------------------- linear()

Rows fenced_rows(const Fenced<float>& memory, size_t count, size_t width, size_t stride) {
  EXPECT_EQ(memory.size(), count * stride);
  return {memory.data(), stride, width, count};
}

struct Layer {
  size_t outputs, inputs;
  std::vector<float> worth;
  Matrix matrix;

  Layer(DType dtype, size_t n, size_t k)
      : outputs(n), inputs(k), worth(numbers(n * k, n + k, Fill::wide)) {
    std::vector<uint16_t> half(n * k);
    for (size_t i = 0; i < half.size() && dtype != DType::f32; ++i) {
      half[i] = dtype == DType::bf16 ? round_bf16(worth[i]) : round_f16(worth[i]);
      worth[i] = dtype == DType::bf16 ? widen_bf16(half[i]) : widen_f16(half[i]);
    }
    const Tensor t(dtype, n, k,
                   dtype == DType::f32 ? static_cast<const void*>(worth.data()) : half.data());
    matrix = Matrix({&t.view}, k, 1);
  }
  float plain(const float* x, size_t row,
              Contract contract = Contract::f32) const {  // x is padded with a zero
    std::vector<float> w(worth.begin() + static_cast<int64_t>(row * inputs),
                         worth.begin() + static_cast<int64_t>((row + 1) * inputs));
    w.resize((inputs + 1) / 2 * 2, 0.0f);
    return contract == Contract::bf16 ? plain_dot_pairs(w.data(), x, w.size())
                                      : plain_dot(w.data(), x, w.size());
  }
};

// Returns the contracts that may multiply a matrix of this type.
std::vector<Contract> contracts_of(DType dtype) {
  if (dtype == DType::bf16) return {Contract::f32, Contract::bf16};
  return {Contract::f32};
}

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// A pass of `rows` rows of at most `widest` inputs.
struct OnePass {
  Scratch scratch;
  Pass pass{};

  OnePass(const std::string& isa, size_t widest, size_t rows, int threads, Contract contract) {
    ModelConfig config;
    config.layers = 1;
    config.hidden_size = config.intermediate_size = static_cast<int64_t>(widest);
    config.heads = config.kv_heads = 1;
    config.head_dim = 16;
    scratch = make_scratch(config, rows, threads, 64);
    pass.kernels = find_kernels(isa.c_str());
    pass.scratch = &scratch;
    pass.contract = contract;
  }
};

// Computes y = W x on `threads` threads. y is poisoned first and has a margin after the packed
// outputs.
std::vector<float> run_linear(const std::string& isa, const Layer& layer, int threads, size_t rows,
                              const Fenced<float>& x, Contract contract = Contract::f32) {
  OnePass one(isa, layer.inputs, rows, threads, contract);
  const size_t ldx = x.size() / rows, width = round_up(layer.outputs, 16), ldy = width + 5;
  const Fenced<float> y(rows * ldy);
  const Rows in = fenced_rows(x, rows, layer.inputs, ldx),
             out = fenced_rows(y, rows, layer.outputs, ldy);
  run_team(threads, [&](Team t) { linear(t, one.pass, layer.matrix, in, out); });
  EXPECT_TRUE(y.untouched());
  std::vector<float> result;
  for (size_t r = 0; r < rows; ++r) {
    result.insert(result.end(), out.row(r), out.row(r) + layer.outputs);
    for (size_t i = layer.outputs; i < ldy; ++i) {  // padding is zero, the margin unchanged
      EXPECT_EQ(bits_of(out.row(r)[i]), i < width ? 0u : 0xFFFFFFFFu)
          << "row " << r << ", column " << i;
    }
  }
  return result;
}

Fenced<float> make_input(size_t rows, size_t inputs) {
  const size_t ldx = round_up(inputs, 16);
  std::vector<float> x = numbers(rows * ldx, rows + inputs, Fill::wide);
  for (size_t i = 0; i < x.size(); ++i) {
    if (i % ldx >= inputs) x[i] = 0.0f;
  }
  return Fenced<float>(x);
}

class LinearOnEachIsa : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Matrix, LinearOnEachIsa, testing::ValuesIn(isa_names()),
                         [](const auto& info) { return info.param; });

// One row uses the matrix-vector kernel, more rows the matrix-matrix kernel.
TEST_P(LinearOnEachIsa, AnyNumberOfRowsGivesTheSameBits) {
  const std::pair<size_t, size_t> shapes[] = {{1, 1},   {15, 3},  {16, 16}, {17, 31},
                                              {63, 33}, {64, 64}, {65, 65}, {130, 97}};
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const auto& [outputs, inputs] : shapes) {
      const Layer layer(dtype, outputs, inputs);
      const Fenced<float> x = make_input(13, inputs);
      const size_t ldx = x.size() / 13;
      for (Contract contract : contracts_of(dtype)) {
        std::vector<float> expected;
        for (size_t r = 0; r < 13; ++r) {
          for (size_t n = 0; n < outputs; ++n)
            expected.push_back(layer.plain(x.data() + r * ldx, n, contract));
        }
        for (size_t rows = 1; rows <= 13; ++rows) {
          const Fenced<float> part(std::vector<float>(x.data(), x.data() + rows * ldx));
          for (int threads : {1, 3}) {
            const std::vector<float> got =
                run_linear(GetParam(), layer, threads, rows, part, contract);
            ASSERT_TRUE(equal_bits(got, std::span(expected).first(rows * outputs)))
                << dtype_name(dtype) << " " << outputs << "x" << inputs << ", " << rows << " rows, "
                << threads << " threads";
          }
        }
      }
    }
  }
}

// Sizes around the depth of a piece (640, and 2048 in pairs), the rows of a block (516) and the
// width of a panel (64).
TEST_P(LinearOnEachIsa, BlockBoundaries) {
  const std::vector<std::array<size_t, 3>> cases = {
      {2, 17, 511},  {7, 17, 1027},  {9, 17, 639}, {10, 17, 640}, {13, 70, 641}, {9, 66, 1283},
      {9, 17, 2048}, {11, 66, 2049}, {515, 17, 5}, {516, 17, 6},  {517, 17, 7},  {1033, 33, 642}};
  for (const auto& [rows, outputs, inputs] : cases) {
    const Layer layer(DType::bf16, outputs, inputs);
    const Fenced<float> x = make_input(rows, inputs);
    const size_t ldx = x.size() / rows;
    for (Contract contract : contracts_of(DType::bf16)) {
      const std::vector<float> got = run_linear(GetParam(), layer, 2, rows, x, contract);
      for (size_t r = 0; r<rows; r += rows> 100 ? 101 : 1) {
        for (size_t n = 0; n < outputs; ++n) {
          ASSERT_TRUE(same_bits(got[r * outputs + n], layer.plain(x.data() + r * ldx, n, contract)))
              << rows << " rows, " << outputs << "x" << inputs << ": row " << r << ", output " << n;
        }
      }
    }
  }
}

// Checks f(gate) * up, where gate and up are the two halves of a layer's outputs. The product is
// taken whole (few rows, halves that are not multiples of 16, biases) or panel by panel.
void check_gated(const std::string& isa, const Linear& layer, Contract contract, size_t rows,
                 int threads, Gate gate) {
  const size_t inputs = layer.weight.columns(), half = layer.weight.rows() / 2,
               ld = round_up(2 * half, 16), ldy = round_up(half, 64) + 5;
  const Fenced<float> x = make_input(rows, inputs), products(rows * ld), scratch(rows * ld),
                      y(rows * ldy);
  const Rows in = fenced_rows(x, rows, inputs, x.size() / rows),
             both = fenced_rows(products, rows, 2 * half, ld);
  const Rows out = fenced_rows(y, rows, half, ldy);
  OnePass one(isa, inputs, rows, threads, contract);
  one.pass.gate_up = fenced_rows(scratch, rows, 2 * half, ld);
  run_team(threads, [&](Team t) {
    linear(t, one.pass, layer, in, both);
    linear_gated(t, one.pass, 0, layer, gate, in, one.pass.gate_up, out);
  });
  std::vector<float> expected(half);
  for (size_t r = 0; r < rows; ++r) {
    gate_kernel(*one.pass.kernels, gate)(both.row(r), both.row(r) + half, expected.data(), half);
    ASSERT_TRUE(equal_bits(std::span(out.row(r), half), expected))
        << "row " << r << " of " << rows << ", " << half << " gates";
    for (size_t i = half; i < ldy; ++i)
      ASSERT_EQ(bits_of(out.row(r)[i]), 0xFFFFFFFFu) << "row " << r << ": written past the row";
  }
  ASSERT_TRUE(y.untouched() && products.untouched() && scratch.untouched());
}

TEST_P(LinearOnEachIsa, GatesAreThoseOfTheProduct) {
  for (size_t half : {5, 16, 48, 64, 80, 208, 336}) {
    const Layer layer(DType::bf16, 2 * half, 128);
    for (const auto& [type, contract] : {std::pair{WeightType::bf16, Contract::f32},
                                         {WeightType::bf16, Contract::bf16},
                                         {WeightType::q8, Contract::q8},
                                         {WeightType::q4, Contract::q4}}) {
      SCOPED_TRACE(contract_name(contract));
      Linear linear = {
          Matrix::packed(WeightType::bf16, 2 * half, 128, layer.matrix.all().data(), nullptr), {}};
      if (is_quantized(type)) linear.weight = layer.matrix.quantized(type, 1);
      for (size_t rows : {1, 2, 9, 13, 523}) {
        ASSERT_NO_FATAL_FAILURE(check_gated(GetParam(), linear, contract, rows,
                                            1 + static_cast<int>(rows % 3), Gate::silu));
      }
      ASSERT_NO_FATAL_FAILURE(check_gated(GetParam(), linear, contract, 14, 2, Gate::gelu_tanh));
      ASSERT_NO_FATAL_FAILURE(
          check_gated(GetParam(), linear, contract, 23, 2, Gate::clamped(7.0f)));
      linear.bias = numbers(2 * half, 3, Fill::wide);
      ASSERT_NO_FATAL_FAILURE(check_gated(GetParam(), linear, contract, 14, 2, Gate::silu));
    }
  }
}

// Random blocks of mxfp4. Any bytes form a valid block, except exponents above 252.
std::vector<std::byte> mxfp4_blocks(size_t n, uint64_t seed) {
  std::vector<std::byte> bytes(17 * n);
  Stream s(seed);
  for (std::byte& b : bytes) b = static_cast<std::byte>(s.next());
  for (size_t i = 0; i < n; ++i) bytes[17 * i] = static_cast<std::byte>(118 + s.next() % 10);
  return bytes;
}

// The bits of a row depend neither on the rows beside it, nor on half strips, nor on the number of
// pieces. Under f32 they are those of the same weights as float32.
TEST_P(LinearOnEachIsa, Mxfp4GivesEachRowTheBitsOfARowAlone) {
  for (const size_t inputs : {32, 64, 160, 192, 1088, 2112}) {
    constexpr size_t kOutputs = 101;
    const std::vector<std::byte> blocks = mxfp4_blocks(kOutputs * inputs / 32, inputs);
    std::vector<float> wide(kOutputs * inputs);
    dequantize_ggml(39, blocks.data(), kOutputs * inputs / 32, wide.data());
    const std::vector<int64_t> shape = {kOutputs, static_cast<int64_t>(inputs)};
    const TensorView stored = {"w", DType::mxfp4, "MXFP4", shape, blocks},
                     widened = {"w", DType::f32, "F32", shape, std::as_bytes(std::span(wide))};
    const Matrix w({&stored}, inputs, 1), same({&widened}, inputs, 1);
    const size_t ldx = round_up(inputs, 64);
    std::vector<float> all = numbers(23 * ldx, inputs, Fill::wide);
    for (size_t i = 0; i < all.size(); ++i) {
      if (i % ldx >= inputs) all[i] = 0.0f;
    }
    for (const Contract contract : {Contract::ggml, Contract::f32}) {
      std::vector<float> alone;
      for (const size_t rows : {1, 7, 23}) {
        const Fenced<float> x(std::vector<float>(all.data(), all.data() + rows * ldx)),
            y(rows * 112), z(rows * 112);
        const Rows in = fenced_rows(x, rows, inputs, ldx),
                   out = fenced_rows(y, rows, kOutputs, 112),
                   expected = fenced_rows(z, rows, kOutputs, 112);
        OnePass one(GetParam(), inputs, rows, 2, contract);
        run_team(2, [&](Team t) { linear(t, one.pass, w, in, out); });
        if (alone.empty()) alone.assign(out.row(0), out.row(0) + kOutputs);
        ASSERT_TRUE(equal_bits(std::span(out.row(0), kOutputs), alone)) << rows << " " << inputs;
        if (contract == Contract::ggml) continue;
        run_team(2, [&](Team t) { linear(t, one.pass, same, in, expected); });
        for (size_t r = 0; r < rows; ++r) {
          ASSERT_TRUE(
              equal_bits(std::span(out.row(r), kOutputs), std::span(expected.row(r), kOutputs)))
              << "row " << r << " of " << rows << ", " << inputs << " inputs";
        }
      }
    }
  }
}

// OpenBLAS sums in an order of its own, so the result is compared within the error of any order.
// Depths are around a panel's (640), outputs around what one call takes (256).
TEST_P(LinearOnEachIsa, BlasAgreesWithinRounding) {
  if (!have_blas()) GTEST_SKIP() << "built without OpenBLAS";
  const std::vector<std::array<size_t, 3>> cases = {
      {2, 1, 1}, {3, 70, 639}, {13, 257, 640}, {4, 300, 641}, {7, 33, 1930}};
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const auto& [rows, outputs, inputs] : cases) {
      const Layer layer(dtype, outputs, inputs);
      const Fenced<float> x = make_input(rows, inputs);
      const size_t ldx = x.size() / rows;
      for (int threads : {1, 3}) {
        const std::vector<float> got =
            run_linear(GetParam(), layer, threads, rows, x, Contract::f32_blas);
        for (size_t i = 0; i < got.size(); ++i) {
          const float* w = layer.worth.data() + i % outputs * inputs;
          double sum = 0, magnitude = 0;
          for (size_t k = 0; k < inputs; ++k) {
            const double term = double{w[k]} * double{x.data()[i / outputs * ldx + k]};
            sum += term;
            magnitude += std::abs(term);
          }
          ASSERT_NEAR(got[i], sum, gamma(static_cast<double>(inputs)) * magnitude)
              << dtype_name(dtype) << " " << outputs << "x" << inputs << ", " << threads
              << " threads: value " << i;
        }
      }
    }
  }
}

// Rows are divided where panels alone would leave threads idle, and nowhere else.
TEST(RowParts, KeepAllThreadsBusy) {
  const size_t tiles = detail::tiles_of(512);
  for (size_t groups : {1, 2, 18, 19, 32, 108, 1000})
    EXPECT_EQ(detail::row_parts(groups, tiles, 1), 1u) << groups;
  EXPECT_EQ(detail::row_parts(32, tiles, 2), 1u) << "16 groups each";
  EXPECT_EQ(detail::row_parts(128, tiles, 16), 1u) << "8 groups each";
  EXPECT_EQ(detail::row_parts(18, 7, 16), 1u) << "too few rows to divide";
  for (size_t threads : {2, 3, 8, 16, 32, 64}) {
    for (size_t groups : {1, 18, 24, 32, 48, 108}) {
      const size_t parts = detail::row_parts(groups, tiles, threads),
                   rounds = (groups * parts + threads - 1) / threads;
      EXPECT_LE(parts, 8u);
      EXPECT_LE(rounds, (groups + threads - 1) / threads * parts) << "later than whole panels";
      if (groups >= threads) {
        EXPECT_GE(groups * parts * 10, rounds * threads * 7) << groups << " by " << threads;
      }
    }
  }
}

}  // namespace
}  // namespace stet::test::matrix_tests
