// Errors of exp, tanh, silu and gelu in units in the last place, and their special values. The
// limits asserted here are those that stet/kernels/kernels.hpp states.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/kernel_testing.hpp"

namespace stet::test::transcendentals_tests {
namespace {

constexpr size_t kStep = 4096;

using Function = void (*)(const float* x, float* y, size_t n);

void exp_of(const float* x, float* y, size_t n) { best_kernels().exp(x, y, n); }
void tanh_of(const float* x, float* y, size_t n) { best_kernels().tanh(x, y, n); }
void silu_of(const float* x, float* y, size_t n) {
  static const std::vector<float> ones(kStep, 1.0f);
  best_kernels().silu_mul(x, ones.data(), y, n);
}
void gelu_of(const float* x, float* y, size_t n) {
  static const std::vector<float> ones(kStep, 1.0f);
  best_kernels().gelu_tanh_mul(x, ones.data(), y, n);
}

void gelu_by_erf_of(const float* x, float* y, size_t n) { best_kernels().gelu(x, y, n); }

double exact_silu(double g) { return g / (1 + std::exp(-g)); }
// Computes 0.5 g (1 + tanh t) as g / (1 + exp(-2 t)), which does not cancel.
double exact_gelu(double g) {
  const double t = std::sqrt(2 / 3.14159265358979323846) * (g + 0.044715 * g * g * g);
  return g / (1 + std::exp(-2 * t));
}

// Computes 0.5 g (1 + erf(g / sqrt(2))) as 0.5 g erfc(-g / sqrt(2)), which does not cancel.
double exact_gelu_by_erf(double g) { return 0.5 * g * std::erfc(-g / std::sqrt(2.0)); }

// Returns the spacing of float32 numbers at x.
double spacing(double x) {
  int exponent;
  std::frexp(std::max(std::fabs(x), 0x1p-126), &exponent);
  return std::ldexp(1.0, exponent - 24);
}
double of_result(double exact, double) { return spacing(exact); }
double of_argument(double, double x) { return spacing(x); }
double absolute(double, double) { return 1; }

// Returns the largest error over every `stride`-th float from `first` to `last`, which have one
// sign and |first| < |last|. A result that should overflow but does not counts as an infinite
// error.
double worst(Function f, double (*exact)(double), double (*unit)(double, double), float first,
             float last, uint32_t stride) {
  std::vector<float> x(kStep), y(kStep);
  double largest = 0;
  for (uint64_t at = bits_of(first); at <= bits_of(last);) {
    size_t n = 0;
    for (; n < kStep && at <= bits_of(last); at += stride)
      x[n++] = float_of(static_cast<uint32_t>(at));
    f(x.data(), y.data(), n);
    for (size_t i = 0; i < n; ++i) {
      const double expected = exact(x[i]);
      const bool overflow = std::fabs(expected) >= 0x1.ffffffp127;
      const double error = overflow ? (y[i] == (expected < 0 ? -kInf : kInf) ? 0 : HUGE_VAL)
                                    : std::fabs(y[i] - expected) / unit(expected, x[i]);
      if (!(error <= largest)) largest = error;  // a NaN is the largest error, and stays
    }
  }
  return largest;
}

constexpr float kMax = std::numeric_limits<float>::max();
constexpr uint32_t kSparse = 1021;  // a prime, so that all low mantissa bits occur

TEST(Transcendentals, Exp) {
  for (float sign : {1.0f, -1.0f}) {
    EXPECT_LE(worst(exp_of, std::exp, of_result, sign * 0.0f, sign * kMax, kSparse), 0.94);
  }
  const double all = worst(exp_of, std::exp, of_result, 16.0f, 32.0f, 1);
  EXPECT_LE(all, 0.94);
  EXPECT_GE(all, 0.93) << "kernels.hpp states too large an error";
  EXPECT_LE(worst(exp_of, std::exp, of_result, -87.0f, -105.0f, 1), 0.94) << "denormal results";
}

TEST(Transcendentals, Tanh) {
  for (float sign : {1.0f, -1.0f}) {
    EXPECT_LE(worst(tanh_of, std::tanh, of_result, sign * 0.0f, sign * kMax, kSparse), 1.371);
  }
  const double all = worst(tanh_of, std::tanh, of_result, 0.5f, 1.0f, 1);
  EXPECT_LE(all, 1.371);
  EXPECT_GE(all, 1.36) << "kernels.hpp states too large an error";
}

TEST(Transcendentals, Silu) {
  EXPECT_LE(worst(silu_of, exact_silu, of_result, 0.0f, kMax, kSparse), 2.4);
  EXPECT_LE(worst(silu_of, exact_silu, of_result, -0.0f, -88.0f, kSparse), 2.4);
  EXPECT_LE(worst(silu_of, exact_silu, absolute, -88.0f, -kMax, kSparse), 2.61e-37);
  const double all = worst(silu_of, exact_silu, of_result, -16.0f, -32.0f, 1);
  EXPECT_LE(all, 2.4);
  EXPECT_GE(all, 2.37) << "kernels.hpp states too large an error";
}

TEST(Transcendentals, Gelu) {
  for (float sign : {1.0f, -1.0f}) {
    EXPECT_LE(worst(gelu_of, exact_gelu, of_argument, sign * 0.0f, sign * kMax, kSparse), 1.57);
  }
  const double all = worst(gelu_of, exact_gelu, of_argument, 0.5f, 1.0f, 1);
  EXPECT_LE(all, 1.57);
  EXPECT_GE(all, 1.56) << "kernels.hpp states too large an error";
}

TEST(Transcendentals, GeluByErf) {
  for (float sign : {1.0f, -1.0f}) {
    EXPECT_LE(
        worst(gelu_by_erf_of, exact_gelu_by_erf, of_argument, sign * 0.0f, sign * kMax, kSparse),
        1.52);
  }
  const double all = worst(gelu_by_erf_of, exact_gelu_by_erf, of_argument, 0.5f, 1.0f, 1);
  EXPECT_LE(all, 1.52);
  EXPECT_GE(all, 1.51) << "kernels.hpp states too large an error";
}

// Compares all instruction sets on every 4099th bit pattern of float32, including NaNs.
TEST(Transcendentals, EveryInstructionSetGivesTheSameBits) {
  using Member = void (*Kernels::*)(const float*, float*, size_t);
  std::vector<float> x(kStep), expected(kStep), y(kStep);
  for (uint64_t at = 0; at < uint64_t{1} << 32;) {
    size_t n = 0;
    for (; n < kStep && at < uint64_t{1} << 32; at += 4099)
      x[n++] = float_of(static_cast<uint32_t>(at));
    for (Member f : {&Kernels::exp, &Kernels::tanh, &Kernels::gelu}) {
      (kernels_portable.*f)(x.data(), expected.data(), n);
      for (const std::string& isa : isa_names()) {
        (find_kernels(isa.c_str())->*f)(x.data(), y.data(), n);
        ASSERT_TRUE(equal_bits(std::span(y).first(n), std::span(expected).first(n)))
            << isa << ", from " << x[0];
      }
    }
  }
}

// Points where one formula takes over from another, and their neighbours: the clamps of exp, and
// tanh's 0.625.
TEST(Transcendentals, SeamsAreTheSameOnEveryInstructionSet) {
  for (float seam : {0.625f, 89.0f, 104.0f, 0x1.62e42ep+6f, 0x1p-126f}) {
    for (float sign : {1.0f, -1.0f}) {
      const float x[3] = {sign * std::nextafter(seam, 0.0f), sign * seam,
                          sign * std::nextafter(seam, kInf)};
      float e[3], t[3], y[3];
      kernels_portable.exp(x, e, 3);
      kernels_portable.tanh(x, t, 3);
      EXPECT_TRUE(sign > 0 ? e[0] <= e[1] && e[1] <= e[2] : e[0] >= e[1] && e[1] >= e[2]) << x[1];
      EXPECT_TRUE(sign > 0 ? t[0] <= t[1] && t[1] <= t[2] : t[0] >= t[1] && t[1] >= t[2]) << x[1];
      for (const std::string& isa : isa_names()) {
        find_kernels(isa.c_str())->exp(x, y, 3);
        EXPECT_TRUE(equal_bits(y, e)) << isa << " " << x[1];
        find_kernels(isa.c_str())->tanh(x, y, 3);
        EXPECT_TRUE(equal_bits(y, t)) << isa << " " << x[1];
      }
    }
  }
}

TEST(Transcendentals, SpecialValues) {
  const auto one = [](Function f, float x) {
    float y;
    f(&x, &y, 1);
    return y;
  };
  const auto same = [](float a, float b) { return bits_of(a) == bits_of(b); };
  EXPECT_TRUE(same(one(exp_of, -kInf), 0.0f));
  EXPECT_TRUE(same(one(exp_of, kInf), kInf));
  EXPECT_TRUE(same(one(exp_of, 0.0f), 1.0f) && same(one(exp_of, -0.0f), 1.0f));
  EXPECT_TRUE(same(one(exp_of, 0x1p-149f), 1.0f));
  EXPECT_TRUE(same(one(exp_of, 0x1.62e43p+6f), kInf)) << "the smallest argument that overflows";
  EXPECT_TRUE(same(one(exp_of, 0x1.62e42ep+6f), 0x1.ffff08p127f));
  EXPECT_TRUE(same(one(exp_of, -0x1.9fe368p+6f), 0x1p-149f)) << "the smallest result";
  EXPECT_TRUE(same(one(exp_of, -0x1.9fe36ap+6f), 0.0f));
  for (float x : {kNan, -kNan}) {
    for (Function f : {exp_of, tanh_of, silu_of, gelu_of, gelu_by_erf_of})
      EXPECT_TRUE(std::isnan(one(f, x)));
  }
  EXPECT_TRUE(same(one(tanh_of, kInf), 1.0f) && same(one(tanh_of, -kInf), -1.0f));
  EXPECT_TRUE(same(one(tanh_of, kMax), 1.0f) && same(one(tanh_of, -kMax), -1.0f));
  for (float x : {0x1p-149f, 0x1.fffffcp-127f, 0x1p-126f, 0x1p-60f}) {
    EXPECT_TRUE(same(one(tanh_of, x), x) && same(one(tanh_of, -x), -x)) << x;
    EXPECT_TRUE(same(one(silu_of, x), x / 2)) << x;
    EXPECT_TRUE(same(one(gelu_of, x), x / 2)) << x;
  }
  EXPECT_TRUE(same(one(silu_of, kInf), kInf) && same(one(gelu_of, kInf), kInf));
  EXPECT_TRUE(std::isnan(one(silu_of, -kInf)) && std::isnan(one(gelu_of, -kInf)));
  EXPECT_TRUE(same(one(silu_of, -kMax), -0.0f) && same(one(gelu_of, -kMax), -0.0f));
}

// A polynomial alone would give +0 for -0, because (-0)(-0) + -0 is +0.
TEST(Transcendentals, TanhKeepsTheSignOfZero) {
  for (const std::string& isa : isa_names()) {
    const float x[2] = {0.0f, -0.0f};
    float y[2];
    find_kernels(isa.c_str())->tanh(x, y, 2);
    EXPECT_EQ(bits_of(y[0]), 0u) << isa;
    EXPECT_EQ(bits_of(y[1]), 0x80000000u) << isa;
  }
}

}  // namespace
}  // namespace stet::test::transcendentals_tests
