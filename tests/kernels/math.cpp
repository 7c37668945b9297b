#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <vector>

#include "stet/kernels/math.hpp"
#include "xxhash.h"

namespace stet::test::math_tests {
namespace {

namespace sm = stet::math;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kDenormMin = std::numeric_limits<double>::denorm_min();
constexpr int kSweep = 400000;

// A reproducible stream of pseudo-random numbers in [0, 1).
class Stream {
 public:
  double next() {
    state_ += 0x9E3779B97F4A7C15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
  }
  double between(double low, double high) { return low + (high - low) * next(); }
  // Returns a positive normal double whose exponent is uniformly distributed.
  double scaled() {
    const double mantissa = between(1, 2);
    return std::ldexp(mantissa, static_cast<int>(std::floor(between(-1022, 1024))));
  }

 private:
  uint64_t state_ = 1;
};

// The reference is the C library's long double, which has 11 bits more than double on x86-64 and 60
// more on aarch64. Where long double is double, the sweeps cannot measure errors.
constexpr bool kReference = LDBL_MANT_DIG > DBL_MANT_DIG;

double error_in_ulp(double got, long double reference) {
  int exponent = 0;
  std::frexp(reference, &exponent);
  const long double error = std::fabs(got - reference);
  return static_cast<double>(std::ldexp(error, -std::max(exponent - 53, -1074)));
}

// The largest error of a sweep, and how often rounding to float differed from rounding the
// reference.
struct Worst {
  double error = 0, at = 0;
  int float_differs = 0;

  void add(double x, double got, long double reference) {
    const double e = error_in_ulp(got, reference);
    if (!(e <= error)) error = e, at = x;
    float_differs += static_cast<float>(got) != static_cast<float>(reference);
  }
};

#define EXPECT_WORST(worst, bound)                                         \
  EXPECT_LT((worst).error, bound) << "at " << std::hexfloat << (worst).at; \
  EXPECT_EQ((worst).float_differs, 0);                                     \
  std::printf("           worst %.4f ULP at %a\n", (worst).error, (worst).at)

TEST(Math, ExpKeepsItsStatedError) {
  if (!kReference) GTEST_SKIP() << "long double is no wider than double";
  Stream stream;
  const double ranges[][2] = {{-1, 1}, {-0.35, 0.35}, {-0.01, 0.01}, {-30, 30}, {-708, 709.7}};
  for (const auto& range : ranges) {
    Worst worst;
    for (int i = 0; i < kSweep; ++i) {
      const double x = stream.between(range[0], range[1]);
      worst.add(x, sm::exp(x), std::exp(static_cast<long double>(x)));
    }
    EXPECT_WORST(worst, range[1] == 0.01 ? 0.51 : 0.66);
  }
}

TEST(Math, ExpOfAllIsExpOfEach) {
  Stream stream;
  const double ranges[][2] = {{-30, 0}, {-708.1, 709.1}, {-800, 800}};
  for (const auto& range : ranges) {
    for (const size_t n : {0, 1, 63, 64, 65, 1000}) {
      std::vector<double> x(n);
      for (double& v : x) v = stream.between(range[0], range[1]);
      if (n == 65) x[40] = -std::numeric_limits<double>::infinity();
      if (n == 63) x[40] = std::numeric_limits<double>::quiet_NaN();
      std::vector<double> all = x;
      sm::exp_all(all.data(), n);
      for (size_t i = 0; i < n; ++i)
        ASSERT_EQ(std::bit_cast<uint64_t>(all[i]), std::bit_cast<uint64_t>(sm::exp(x[i]))) << x[i];
    }
  }
}

TEST(Math, ExpUnderflowsGradually) {
  if (!kReference) GTEST_SKIP() << "long double is no wider than double";
  Stream stream;
  Worst worst;
  for (int i = 0; i < kSweep; ++i) {
    const double x = stream.between(-745.1, -708);
    worst.add(x, sm::exp(x), std::exp(static_cast<long double>(x)));
  }
  EXPECT_WORST(worst, 0.8);
}

TEST(Math, LogKeepsItsStatedError) {
  if (!kReference) GTEST_SKIP() << "long double is no wider than double";
  Stream stream;
  Worst near_one, wide, denormal;
  for (int i = 0; i < kSweep; ++i) {
    double x = stream.between(0.4, 2.5);
    near_one.add(x, sm::log(x), std::log(static_cast<long double>(x)));
    x = stream.scaled();
    wide.add(x, sm::log(x), std::log(static_cast<long double>(x)));
    x = std::floor(stream.between(1, 0x1p50)) * kDenormMin;
    denormal.add(x, sm::log(x), std::log(static_cast<long double>(x)));
  }
  EXPECT_WORST(near_one, 0.501);
  EXPECT_WORST(wide, 0.501);
  EXPECT_WORST(denormal, 0.501);
}

// The C library's powl is itself off by up to one unit of its last place, which is 2^-11 of a
// double's.
TEST(Math, PowKeepsItsStatedError) {
  if (!kReference) GTEST_SKIP() << "long double is no wider than double";
  Stream stream;
  Worst rope, whole, large_y;
  for (int i = 0; i < kSweep / 2; ++i) {
    double base = stream.between(2, 1e7), y = stream.between(-1, 0);
    rope.add(base, sm::pow(base, y), std::pow(static_cast<long double>(base), y));
    base = stream.scaled();
    y = stream.between(-700, 700) / std::log(base);
    whole.add(base, sm::pow(base, y), std::pow(static_cast<long double>(base), y));
    base = stream.between(0.999, 1.001);
    y = stream.between(-7e5, 7e5);
    large_y.add(base, sm::pow(base, y), std::pow(static_cast<long double>(base), y));
  }
  EXPECT_WORST(rope, 0.66);
  EXPECT_WORST(whole, 0.66);
  EXPECT_WORST(large_y, 0.66);
}

TEST(Math, SincosKeepsItsStatedError) {
  if (!kReference) GTEST_SKIP() << "long double is no wider than double";
  Stream stream;
  for (const double limit : {0.8, 10.0, 1e4, 1e7}) {
    Worst sine, cosine;
    for (int i = 0; i < kSweep / 2; ++i) {
      const double x = stream.between(-limit, limit);
      double s, c;
      sm::sincos(x, &s, &c);
      sine.add(x, s, std::sin(static_cast<long double>(x)));
      cosine.add(x, c, std::cos(static_cast<long double>(x)));
    }
    EXPECT_WORST(sine, 0.8);
    EXPECT_WORST(cosine, 0.8);
  }
}

// Doubles next to multiples of pi / 2 cancel the most.
TEST(Math, SincosKeepsItsStatedErrorNextToMultiplesOfHalfPi) {
  if (!kReference) GTEST_SKIP() << "long double is no wider than double";
  Worst sine, cosine;
  for (int k = 1; k < 6366197; k += 31) {
    const double x = k * 1.57079632679489661923;
    for (const double v : {x, std::nextafter(x, 0), -std::nextafter(x, 1e9)}) {
      if (std::fabs(v) > 1e7) continue;
      double s, c;
      sm::sincos(v, &s, &c);
      sine.add(v, s, std::sin(static_cast<long double>(v)));
      cosine.add(v, c, std::cos(static_cast<long double>(v)));
    }
  }
  EXPECT_WORST(sine, 0.8);
  EXPECT_WORST(cosine, 0.8);
}

TEST(Math, ExpAtItsEdges) {
  EXPECT_EQ(sm::exp(0.0), 1);
  EXPECT_EQ(sm::exp(-0.0), 1);
  EXPECT_EQ(sm::exp(1.0), 0x1.5bf0a8b145769p+1);
  EXPECT_EQ(sm::exp(kDenormMin), 1);
  EXPECT_EQ(sm::exp(kInf), kInf);
  EXPECT_EQ(sm::exp(-kInf), 0);
  EXPECT_TRUE(std::isnan(sm::exp(kNan)));
  EXPECT_EQ(sm::exp(0x1.62e42fefa39efp+9), 0x1.fffffffffff2ap+1023);  // the last finite value
  EXPECT_EQ(sm::exp(0x1.62e42fefa39f0p+9), kInf);
  EXPECT_EQ(sm::exp(709.999), kInf);
  EXPECT_EQ(sm::exp(1e300), kInf);
  EXPECT_EQ(sm::exp(-0x1.74910d52d3051p+9), kDenormMin);  // the last nonzero value
  EXPECT_EQ(sm::exp(-0x1.74910d52d3052p+9), 0);
  EXPECT_EQ(sm::exp(-745.999), 0);
  EXPECT_EQ(sm::exp(-1e300), 0);
}

TEST(Math, LogAtItsEdges) {
  EXPECT_EQ(sm::log(1), 0);
  EXPECT_FALSE(std::signbit(sm::log(1)));
  EXPECT_EQ(sm::log(2), 0x1.62e42fefa39efp-1);
  EXPECT_EQ(sm::log(std::numeric_limits<double>::max()), 0x1.62e42fefa39efp+9);
  EXPECT_EQ(sm::log(kDenormMin), -0x1.74385446d71c3p+9);
  EXPECT_EQ(sm::log(0.0), -kInf);
  EXPECT_EQ(sm::log(-0.0), -kInf);
  EXPECT_EQ(sm::log(kInf), kInf);
  EXPECT_TRUE(std::isnan(sm::log(-1)));
  EXPECT_TRUE(std::isnan(sm::log(-kInf)));
  EXPECT_TRUE(std::isnan(sm::log(kNan)));
}

TEST(Math, PowAtItsEdges) {
  for (int n = -1074; n < 1024; ++n) EXPECT_EQ(sm::pow(2, n), std::ldexp(1.0, n)) << n;
  EXPECT_EQ(sm::pow(10, 22), 1e22);
  EXPECT_EQ(sm::pow(4, 0.5), 2);
  EXPECT_EQ(sm::pow(7.5, 1), 7.5);
  EXPECT_EQ(sm::pow(2, 1024), kInf);
  EXPECT_EQ(sm::pow(2, -1076), 0);
  EXPECT_EQ(sm::pow(0.5, 1e308), 0);
  EXPECT_EQ(sm::pow(0.5, -1e308), kInf);
  EXPECT_EQ(sm::pow(1 + 0x1p-52, 1e308), kInf);
  EXPECT_EQ(sm::pow(2, 1e-310), 1);
  for (const double x : {0.0, 1.0, -3.0, kInf, kNan}) EXPECT_EQ(sm::pow(x, 0), 1);
  for (const double y : {-2.0, 3.0, kInf, -kInf, kNan}) EXPECT_EQ(sm::pow(1, y), 1);
  EXPECT_EQ(sm::pow(0, 2), 0);
  EXPECT_EQ(sm::pow(0, -2), kInf);
  EXPECT_EQ(sm::pow(kInf, 2), kInf);
  EXPECT_EQ(sm::pow(kInf, -2), 0);
  EXPECT_EQ(sm::pow(2, kInf), kInf);
  EXPECT_EQ(sm::pow(2, -kInf), 0);
  EXPECT_EQ(sm::pow(0.5, kInf), 0);
  EXPECT_EQ(sm::pow(0.5, -kInf), kInf);
  EXPECT_EQ(sm::pow(0, kInf), 0);
  EXPECT_EQ(sm::pow(kInf, -kInf), 0);
  EXPECT_TRUE(std::isnan(sm::pow(-2, 2)));
  EXPECT_TRUE(std::isnan(sm::pow(-kInf, 2)));
  EXPECT_TRUE(std::isnan(sm::pow(kNan, 2)));
  EXPECT_TRUE(std::isnan(sm::pow(2, kNan)));
}

TEST(Math, SincosAtItsEdges) {
  double s, c;
  for (const double x : {0.0, -0.0, kDenormMin, -0x1p-28}) {
    sm::sincos(x, &s, &c);
    EXPECT_EQ(std::bit_cast<uint64_t>(s), std::bit_cast<uint64_t>(x));
    EXPECT_EQ(c, 1);
  }
  sm::sincos(0x1.921fb54442d18p+0, &s, &c);  // the double closest to pi / 2
  EXPECT_EQ(s, 1);
  EXPECT_EQ(c, 0x1.1a62633145c07p-54);
  sm::sincos(0x1.921fb54442d18p+1, &s, &c);
  EXPECT_EQ(s, 0x1.1a62633145c07p-53);
  EXPECT_EQ(c, -1);
  sm::sincos(1e7, &s, &c);
  EXPECT_FALSE(std::isnan(s));
  for (const double x : {std::nextafter(1e7, 1e8), -1e8, 1e300, kInf, -kInf, kNan}) {
    sm::sincos(x, &s, &c);
    EXPECT_TRUE(std::isnan(s)) << x;
    EXPECT_TRUE(std::isnan(c)) << x;
  }
}

// Every compiler and architecture must reproduce one digest over many results.
TEST(Math, BitsAreTheSameEverywhere) {
  Stream stream;
  std::vector<unsigned char> bytes;
  const auto add = [&](double v) {
    const uint64_t bits = std::bit_cast<uint64_t>(v);
    for (int i = 0; i < 64; i += 8) bytes.push_back(static_cast<unsigned char>(bits >> i));
  };
  for (int i = 0; i < 50000; ++i) {
    add(sm::exp(stream.between(-750, 712)));
    add(sm::log(stream.scaled()));
    const double base = stream.between(0, 1e6);
    add(sm::pow(base, stream.between(-3, 3)));
    double s, c;
    sm::sincos(stream.between(-1e7, 1e7), &s, &c);
    add(s);
    add(c);
  }
  EXPECT_EQ(XXH64(bytes.data(), bytes.size(), 0), 17090060729468793013u);
}

}  // namespace
}  // namespace stet::test::math_tests
