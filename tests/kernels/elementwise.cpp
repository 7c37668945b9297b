// Elementwise kernels, norms and widening: every instruction set gives the bits of the contract and
// touches only its operands.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "tests/support/kernel_testing.hpp"

namespace stet::test::elementwise_tests {
namespace {

class Elementwise : public EachIsa {};

constexpr size_t kLengths[] = {1,  2,  7,  15, 16,  17,  31,  32,  33,  47,  48,
                               49, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000};

INSTANTIATE_TEST_SUITE_P(All, Elementwise, testing::ValuesIn(isa_names()),
                         [](const auto& info) { return info.param; });

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

TEST_P(Elementwise, AddScaleDivide) {
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

TEST_P(Elementwise, ExpAndTanhDoNotDependOnTheLane) {
  check_elementwise([&](const float* a, const float*, float* y, size_t n) { k.exp(a, y, n); },
                    [](float a, float) { return contract_exp(a); });
  check_elementwise([&](const float* a, const float*, float* y, size_t n) { k.tanh(a, y, n); },
                    [](float a, float) { return contract_tanh(a); });
}

TEST_P(Elementwise, GatesAreTheirFormulas) {
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

TEST_P(Elementwise, Rope) {
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

TEST_P(Elementwise, RmsNormHasSixteenLanesAndATree) {
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
TEST_P(Elementwise, RmsNormSumOrder) {
  std::vector<float> x(32, 1.0f);
  x[0] = 4096.0f;  // lane 0: 2^24, where adding 1 has no effect
  x[8] = 4096.0f;  // joins lane 0 first: 2^25, where adding 1 or 2 has no effect
  // Lanes 4 and 12 give 2 + 2 = 4, lanes 2, 6, 10 and 14 give 8, the odd ones 16.
  const float sum = 0x1p25f + 28.0f;
  const Fenced<float> in(x), w(std::vector<float>(32, 1.0f)), y(32);
  k.rms_norm(in.data(), w.data(), 0.0f, y.data(), 32);
  EXPECT_EQ(bits_of(y[1]), bits_of(1.0f / std::sqrt(sum / 32)));
}

TEST_P(Elementwise, LayerNormHasSixteenLanesAndATree) {
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
TEST_P(Elementwise, LayerNormSumOrder) {
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
TEST_P(Elementwise, LayerNormIsWithinTheDerivedBound) {
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
TEST_P(Elementwise, WideningIsExact) {
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
}  // namespace stet::test::elementwise_tests
