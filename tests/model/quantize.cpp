// Weights rounded to q8 and q4: their errors, and the packed bytes with the layout restated from
// kernels.hpp.
#include "kernels/quantize.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "stet/kernels/numbers.hpp"
#include "stet/model/matrix.hpp"
#include "tests/support/models.hpp"

namespace stet::test::quantize_tests {
namespace {

using Weights = std::array<float, 32>;

constexpr WeightType kTypes[] = {WeightType::q8, WeightType::q4};

QuantizedBlock round_block(WeightType type, const Weights& w) {
  return type == WeightType::q8 ? round_block_q8(w) : round_block_q4(w);
}

int zero_of(WeightType type) { return type == WeightType::q8 ? 128 : 8; }
double value(WeightType type, const QuantizedBlock& b, size_t i) {
  return (b.u[i] - zero_of(type)) * static_cast<double>(widen_f16(b.scale));
}
double squared_error(WeightType type, const Weights& w, const QuantizedBlock& b) {
  double sum = 0;
  for (size_t i = 0; i < 32; ++i) sum += std::pow(static_cast<double>(w[i]) - value(type, b, i), 2);
  return sum;
}

// Returns blocks of every kind: normal weights of many magnitudes, outliers, constants, few
// distinct values, denormals, a single nonzero weight.
std::vector<Weights> many_blocks() {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<Weights> all;
  const auto add = [&](auto f) {
    Weights w;
    for (size_t i = 0; i < 32; ++i) w[i] = f(i);
    all.push_back(w);
  };
  for (int exponent = -40; exponent <= 13; ++exponent) {
    const float size = std::ldexp(1.0f, exponent);
    for (int i = 0; i < 40; ++i) add([&](size_t) { return size * normal(random); });
    for (size_t at = 0; at < 32; at += 5)
      add([&](size_t i) { return size * (i == at ? -9.0f : 0.1f * normal(random)); });
    for (size_t at = 0; at < 32; at += 7) add([&](size_t i) { return i == at ? size : 0.0f; });
    add([&](size_t) { return size; });
    add([&](size_t) { return -size; });
    add([&](size_t i) { return i % 2 == 0 ? size : -size; });
    add([&](size_t i) { return size * static_cast<float>(i); });
    add([&](size_t i) { return size * static_cast<float>(static_cast<int>(i) - 16); });
  }
  add([&](size_t) { return std::numeric_limits<float>::denorm_min(); });
  add([&](size_t) { return std::numeric_limits<float>::min(); });
  return all;
}

TEST(RoundBlock, Q8IsOffByHalfAStepAtMost) {
  for (const Weights& w : many_blocks()) {
    const QuantizedBlock b = round_block_q8(w);
    const double d = static_cast<double>(widen_f16(b.scale));
    ASSERT_LT(b.scale, 0x7C00u);  // positive and finite
    for (size_t i = 0; i < 32; ++i) {
      // The product of w and the inverse of d is rounded twice.
      const double x = static_cast<double>(w[i]), rounding = std::abs(x) * 0x1p-22;
      ASSERT_LE(std::abs(x - value(WeightType::q8, b, i)), d / 2 + rounding)
          << x << " in steps of " << d;
      ASSERT_GE(b.u[i], 1);
    }
  }
}

// The scale is max / 127 rounded, for values at which float16 has its full precision.
TEST(RoundBlock, Q8HasTheScaleOfTheLargestWeight) {
  for (const Weights& w : many_blocks()) {
    float top = 0;
    for (const float x : w) top = std::max(top, std::abs(x));
    if (top / 127 < 0x1p-14f) continue;
    ASSERT_EQ(round_block_q8(w).scale, round_f16(top / 127));
  }
}

// Rounds with d = max / -8 and u = floor(w / d + 8.5), the usual way to make Q4_0. With another
// `steps` the grid's other end meets the maximum.
QuantizedBlock plain_q4(const Weights& w, double steps = -8) {
  double top = 0;
  for (const float x : w) {
    if (std::abs(static_cast<double>(x)) > std::abs(top)) top = static_cast<double>(x);
  }
  const double d = top / steps;
  QuantizedBlock b;
  b.scale = round_f16(static_cast<float>(d));
  for (size_t i = 0; i < 32; ++i) {
    const double u = d == 0 ? 8 : std::floor(static_cast<double>(w[i]) / d + 8.5);
    b.u[i] = static_cast<uint8_t>(std::clamp(u, 0.0, 15.0));
  }
  return b;
}

TEST(RoundBlock, Q4HasTheLesserErrorOfBothEnds) {
  double ours = 0, plain = 0;
  for (const Weights& w : many_blocks()) {
    const QuantizedBlock b = round_block_q4(w), p = plain_q4(w);
    for (const uint8_t u : b.u) ASSERT_LE(u, 15);
    const double error = squared_error(WeightType::q4, w, b),
                 other = squared_error(WeightType::q4, w, p);
    const double high = squared_error(WeightType::q4, w, plain_q4(w, 7));
    // The comparison uses sums of 32 squares in float32: each square and each sum is off by 2^-24.
    ASSERT_LE(error, std::min(other, high) * (1 + 0x1p-16));
    double size = 0;
    for (const float x : w) size += static_cast<double>(x) * static_cast<double>(x);
    if (size < 1e-6) continue;
    ours += error / size;
    plain += other / size;
  }
  EXPECT_LT(ours, 0.98 * plain);  // half of the blocks improve
}

TEST(RoundBlock, ZerosAndConstantsAreExact) {
  for (const WeightType type : kTypes) {
    const QuantizedBlock zeros = round_block(type, Weights{});
    for (size_t i = 0; i < 32; ++i) EXPECT_EQ(zeros.u[i], zero_of(type));
    EXPECT_EQ(widen_f16(zeros.scale), 0.0f);
    for (const float c : {127.0f, -127.0f, 0x1p-10f * 127, 56.0f * 127,
                          -65504.0f * 127}) {  // the scale is a float16
      Weights w;
      w.fill(type == WeightType::q8 ? c : c / 127 * 8);
      const QuantizedBlock b = round_block(type, w);
      for (size_t i = 0; i < 32; ++i) EXPECT_EQ(value(type, b, i), static_cast<double>(w[i])) << c;
    }
  }
}

TEST(RoundBlock, BlocksWithoutAScaleAreNotFinite) {
  constexpr float inf = std::numeric_limits<float>::infinity(),
                  nan = std::numeric_limits<float>::quiet_NaN();
  for (const WeightType type : kTypes) {
    const float limit = 65520.0f * (type == WeightType::q8 ? 127 : 8);
    for (const float bad : {nan, inf, -inf, limit, -limit, std::numeric_limits<float>::max()}) {
      for (size_t at = 0; at < 32; ++at) {
        Weights w;
        w.fill(0.5f);
        w[at] = bad;
        EXPECT_EQ(round_block(type, w).scale & 0x7C00, 0x7C00) << bad;
      }
    }
    for (const float good : {std::nextafter(limit, 0.0f), -std::nextafter(limit, 0.0f)}) {
      Weights w{};
      w[31] = good;
      EXPECT_EQ(round_block(type, w).scale & 0x7FFF, 0x7BFF) << good;
    }
  }
}

// ---------------------------------------------------------------- matrices

// Float32 weights. The tensor's bytes are those of `w`.
struct Tensor {
  size_t rows, columns;
  std::vector<float> w;

  Matrix matrix() const {
    TensorView view;
    view.name = "w";
    view.dtype = DType::f32;
    view.dtype_text = "F32";
    view.shape = {static_cast<int64_t>(rows), static_cast<int64_t>(columns)};
    view.bytes = std::as_bytes(std::span(w));
    return Matrix({&view}, columns, 1);
  }
};

Tensor random_tensor(size_t rows, size_t columns, uint32_t seed = 1) {
  Tensor t{rows, columns, std::vector<float>(rows * columns)};
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02f);
  for (float& x : t.w) x = normal(random);
  return t;
}

std::vector<std::byte> bytes_of(const Matrix& m) { return {m.all().begin(), m.all().end()}; }

// The packed layout: strips of 64 columns of 16 rows. A strip begins with the scales, [2][16] of 2
// bytes, then has u.
//   q8  [2][8][16][4]: byte 4c + i of a row's part of a line is column 4 line + i
//   q4  [2][4][16][4]: low halves hold the first 16 columns of 32 in that order, high halves the rest
struct Layout {
  WeightType type;
  size_t columns;

  size_t strips() const { return (columns + 63) / 64; }
  size_t strip_bytes() const { return 64 + 64 * (type == WeightType::q8 ? 16 : 8); }
  size_t size(size_t rows) const { return (rows + 15) / 16 * strips() * strip_bytes(); }
  size_t strip(size_t row, size_t column) const {
    return (row / 16 * strips() + column / 64) * strip_bytes();
  }
  size_t scale(size_t row, size_t column) const {
    return strip(row, column) + column % 64 / 32 * 32 + row % 16 * 2;
  }
  size_t byte(size_t row, size_t column) const {
    const size_t half = column % 64 / 32, lines = type == WeightType::q8 ? 8 : 4;
    const size_t inner = column % 32 % (lines * 4);
    return strip(row, column) + 64 + ((half * lines + inner / 4) * 16 + row % 16) * 4 + inner % 4;
  }
  bool high(size_t column) const { return type == WeightType::q4 && column % 32 >= 16; }

  void put(std::vector<std::byte>& bytes, size_t row, size_t column, unsigned u) const {
    bytes[byte(row, column)] |= static_cast<std::byte>(high(column) ? u << 4 : u);
  }
  void put_scale(std::vector<std::byte>& bytes, size_t row, size_t column, uint16_t d) const {
    bytes[scale(row, column)] = static_cast<std::byte>(d & 255);
    bytes[scale(row, column) + 1] = static_cast<std::byte>(d >> 8);
  }
};

TEST(Quantized, BytesAreThoseOfTheLayout) {
  for (const WeightType type : kTypes) {
    for (const size_t rows : {1, 5, 16, 17, 33}) {
      for (const size_t columns : {1, 2, 31, 32, 33, 63, 64, 65, 96, 127, 128, 130, 200}) {
        const Tensor t = random_tensor(rows, columns);
        const Matrix m = t.matrix().quantized(type, 2);
        ASSERT_EQ(m.type(), type);
        ASSERT_EQ(m.rows(), rows);
        ASSERT_EQ(m.columns(), columns);
        ASSERT_EQ(m.depth(), (columns + 63) / 64 * 64);
        const Layout layout{type, columns};
        ASSERT_EQ(m.bytes(), layout.size(rows));
        ASSERT_EQ(Matrix::packed_bytes(type, rows, columns), layout.size(rows));
        std::vector<std::byte> expected(m.bytes());
        for (size_t row = 0; row < (rows + 15) / 16 * 16; ++row) {
          for (size_t column = 0; column < m.depth(); column += 32) {
            Weights w{};
            for (size_t i = 0; i < 32 && row < rows && column + i < columns; ++i)
              w[i] = t.w[row * columns + column + i];
            const QuantizedBlock b = round_block(type, w);
            layout.put_scale(expected, row, column, b.scale);
            for (size_t i = 0; i < 32; ++i) layout.put(expected, row, column + i, b.u[i]);
          }
        }
        ASSERT_EQ(bytes_of(m), expected)
            << weight_type_name(type) << " " << rows << " x " << columns;
      }
    }
  }
}

TEST(Quantized, GatherDecodesThePackedBytes) {
  for (const WeightType type : kTypes) {
    for (const size_t rows : {1, 17}) {
      for (size_t columns = 1; columns <= 130; ++columns) {
        const Tensor t = random_tensor(rows, columns, static_cast<uint32_t>(columns));
        const Matrix m = t.matrix().quantized(type, 1);
        for (size_t row = 0; row < rows; ++row) {
          std::vector<float> out(columns + 1, 77.0f);
          m.gather(row, out.data());
          ASSERT_EQ(out[columns], 77.0f);  // only `columns` values were written
          for (size_t begin = 0; begin < columns; begin += 32) {
            Weights w{};
            const size_t n = std::min<size_t>(32, columns - begin);
            std::copy_n(t.w.begin() + static_cast<long>(row * columns + begin), n, w.begin());
            const QuantizedBlock b = round_block(type, w);
            for (size_t i = 0; i < n; ++i)
              ASSERT_EQ(static_cast<double>(out[begin + i]), value(type, b, i))
                  << row << " " << begin + i;
          }
        }
      }
    }
  }
}

TEST(Quantized, AnyNumberOfThreadsGivesTheSameBytes) {
  const Tensor t = random_tensor(77, 200);
  for (const WeightType type : kTypes) {
    const Matrix one = t.matrix().quantized(type, 1);
    for (const int threads : {2, 3, 8})
      EXPECT_EQ(bytes_of(t.matrix().quantized(type, threads)), bytes_of(one));
  }
}

TEST(Quantized, ABadWeightIsNamedForAnyNumberOfThreads) {
  Tensor t = random_tensor(100, 70);
  t.w[93 * 70 + 2] = -std::numeric_limits<float>::infinity();
  t.w[40 * 70 + 69] = std::nanf("");
  t.w[39 * 70 + 69] = 1e30f;
  for (const int threads : {1, 2, 5}) {
    EXPECT_EQ(
        error_of([&] { t.matrix().quantized(WeightType::q8, threads); }),
        "unsupported: [39, 69]: expected less than 8.32104e+06 in magnitude for q8, found 1e+30");
  }
  t.w[39 * 70 + 69] = 524159.0f;  // just below 8 * 65520, the limit of q4's float16 scale
  for (const int threads : {1, 2, 5}) {
    EXPECT_EQ(error_of([&] { t.matrix().quantized(WeightType::q4, threads); }),
              "unsupported: [40, 69]: expected less than 524160 in magnitude for q4, found nan");
  }
}

// GGUF's blocks have a float16 d and 32 integers q, with weights q d. Q8_0 has q of -128 .. 127,
// Q4_0 of -8 .. 7. Both can be represented here bit for bit, so files of that format need no second
// rounding.
TEST(Quantized, BlocksOfGgufHaveAnExactPlace) {
  std::mt19937 random(3);
  for (const WeightType type : kTypes) {
    const size_t rows = 19, columns = 160;
    const int low = -zero_of(type), count = 2 * zero_of(type);
    const Layout layout{type, columns};
    std::vector<std::byte> bytes(layout.size(rows) + 64);
    std::vector<double> expected;
    const auto aligned = (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64;
    std::vector<std::byte> packed(layout.size(rows));
    int next = 0;
    for (size_t row = 0; row < rows; ++row) {
      uint16_t d = 0;
      for (size_t column = 0; column < columns; ++column) {
        if (column % 32 == 0) {
          do d = static_cast<uint16_t>(random());
          while ((d & 0x7C00) == 0x7C00);  // any finite number of either sign
          layout.put_scale(packed, row, column, d);
        }
        const int q = low + next++ % count;
        layout.put(packed, row, column, static_cast<unsigned>(q - low));
        expected.push_back(q * static_cast<double>(widen_f16(d)));
      }
    }
    std::copy(packed.begin(), packed.end(), bytes.begin() + static_cast<long>(aligned));
    const Matrix m = Matrix::packed(type, rows, columns, bytes.data() + aligned, nullptr);
    std::vector<float> out(columns);
    for (size_t row = 0; row < rows; ++row) {
      m.gather(row, out.data());
      for (size_t k = 0; k < columns; ++k)
        ASSERT_EQ(static_cast<double>(out[k]), expected[row * columns + k]) << row << " " << k;
    }
  }
}

// ---------------------------------------------------------------- checkpoints

// Returns a copy of a checkpoint in which one weight is changed.
std::shared_ptr<const FileSource> with_weight(const std::string& name, const std::string& tensor,
                                              size_t row, size_t column, float weight) {
  const std::string directory = data_path("models/" + name);
  std::string file = read_text(directory + "/model.safetensors");
  const std::vector<std::byte> bytes = read_file(directory + "/model.safetensors", size_t{1} << 30);
  const SafeTensors parsed = SafeTensors::parse(bytes, name);
  const TensorView* view = parsed.find(tensor);
  const size_t at = row * static_cast<size_t>(view->shape.at(1)) + column;
  const size_t begin = static_cast<size_t>(view->bytes.data() - bytes.data());
  std::memcpy(file.data() + begin + at * sizeof weight, &weight, sizeof weight);
  return memory_source(
      {{"config.json", read_text(directory + "/config.json")}, {"model.safetensors", file}}, "m");
}

std::string load_error(const std::shared_ptr<const FileSource>& source, Contract contract) {
  return error_of([&] { Model::load(source, 2, contract); });
}

TEST(QuantizedModel, ABadWeightIsNamed) {
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  const std::string in = "unsupported: m: model.safetensors: ",
                    q8 = ": expected less than 8.32104e+06 in magnitude for q8, found ",
                    q4 = ": expected less than 524160 in magnitude for q4, found ";
  const std::string k = "model.layers.1.self_attn.k_proj.weight",
                    embeddings = "model.embed_tokens.weight", mlp = "h.2.mlp.c_fc.weight";
  const auto k_nan = with_weight("llama31-tiny", k, 3, 5, nan);  // stacked below q_proj
  EXPECT_EQ(load_error(k_nan, Contract::q8), in + k + "[3, 5]" + q8 + "nan");
  EXPECT_EQ(load_error(k_nan, Contract::q4), in + k + "[3, 5]" + q4 + "nan");
  EXPECT_EQ(load_error(k_nan, Contract::f32), "no error");  // f32 accepts any weights
  EXPECT_EQ(load_error(with_weight("llama31-tiny", k, 0, 0, 1e6f), Contract::q8), "no error");
  EXPECT_EQ(load_error(with_weight("llama31-tiny", k, 0, 0, 1e6f), Contract::q4),
            in + k + "[0, 0]" + q4 + "1e+06");
  EXPECT_EQ(load_error(with_weight("llama31-tiny", embeddings, 319, 63, -inf), Contract::q4),
            in + embeddings + "[319, 63]" + q8 + "-inf");
  const std::string head = "lm_head.weight";
  EXPECT_EQ(load_error(with_weight("llama31-tiny", head, 16, 0, inf), Contract::q4),
            in + head + "[16, 0]" + q8 + "inf");
  // GPT-2 stores the transpose, so the error gives the place in the file.
  const Golden gpt2(data_path("models/gpt2-tiny/model.safetensors"));
  const std::string name = gpt2.has(mlp) ? mlp : "transformer." + mlp;
  EXPECT_EQ(load_error(with_weight("gpt2-tiny", name, 7, 200, nan), Contract::q8),
            in + name + "[7, 200]" + q8 + "nan");
}

}  // namespace
}  // namespace stet::test::quantize_tests
