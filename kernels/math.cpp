// Double-precision scalar functions with identical bits on every platform (math.hpp).
#include "stet/kernels/math.hpp"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace stet::math {
namespace {

static_assert(std::numeric_limits<double>::is_iec559 && FLT_EVAL_METHOD == 0,
              "double must be IEEE-754 binary64, without excess precision");

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Adding and subtracting 1.5 * 2^52 rounds |x| < 2^51 to the nearest integer, ties to even. The
// integer is in the low bits of the sum.
constexpr double kRound = 0x1.8p52;

double magnitude(double x) { return x < 0 ? -x : x; }

// Returns 2^n for -1022 <= n <= 1023.
double power_of_two(int64_t n) { return std::bit_cast<double>((n + 1023) << 52); }

// An unevaluated sum hi + lo of about 106 bits, |lo| <= ulp(hi) / 2. The operations below are the
// error-free transformations of Dekker (1971) and Knuth. Errors are below 2^-100 of the operands.
struct Pair {
  double hi, lo;
};

// Returns a + b exactly, for |a| >= |b| or a == 0.
Pair fast_sum(double a, double b) {
  const double s = a + b;
  return {s, b - (s - a)};
}

// Returns a + b exactly.
Pair exact_sum(double a, double b) {
  const double s = a + b, t = s - a;
  return {s, (a - (s - t)) + (b - t)};
}

// Returns a * b exactly, if 2^27 * a and b do not overflow and the error term does not underflow.
Pair exact_product(double a, double b) {
  constexpr double kSplit = 0x1p27 + 1;
  const double as = a * kSplit, bs = b * kSplit;
  const double ah = as - (as - a), al = a - ah;
  const double bh = bs - (bs - b), bl = b - bh;
  const double p = a * b;
  return {p, ((ah * bh - p) + ah * bl + al * bh) + al * bl};
}

Pair operator+(Pair a, Pair b) {
  const Pair s = exact_sum(a.hi, b.hi);
  return fast_sum(s.hi, s.lo + (a.lo + b.lo));
}

Pair operator*(Pair a, Pair b) {
  const Pair p = exact_product(a.hi, b.hi);
  return fast_sum(p.hi, p.lo + (a.hi * b.lo + a.lo * b.hi));
}

Pair operator/(Pair a, Pair b) {
  const double q = a.hi / b.hi;
  const Pair p = exact_product(q, b.hi);
  return fast_sum(q, (((a.hi - p.hi) - p.lo) + (a.lo - q * b.lo)) / b.hi);
}

template <size_t N>
double horner(const double (&coefficients)[N], double z) {
  double y = coefficients[N - 1];
  for (size_t i = N - 1; i-- > 0;) y = y * z + coefficients[i];
  return y;
}

// sin r = r + r z (kSine in z) and cos r = 1 - z / 2 + z^2 (kCosine in z), where z = r^2. These are
// Taylor series up to r^17 / 17! and r^16 / 16!. For |r| <= pi / 4 the next terms are below 2^-58.
constexpr double kSine[] = {
    -1.0 / 6,        1.0 / 120,        -1.0 / 5040,          1.0 / 362880,
    -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000};
constexpr double kCosine[] = {
    1.0 / 24,        -1.0 / 720,         1.0 / 40320,         -1.0 / 3628800,
    1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000};

// The value y * 2^n.
struct Scaled {
  double y;
  int64_t n;
};

// Returns e^(x + tail) for -746 < x < 710 and |tail| <= ulp(x). x + tail = k log 2 + r with |r| <=
// log(2) / 2. e^r = 1 + r + r^2 q(r) by its Taylor series up to r^13 / 13!; the next term is below
// 2^-57.
Scaled exp_scaled(double x, double tail) {
  constexpr double kLog2e = 0x1.71547652b82fep+0;
  constexpr double kLn2Hi = 0x1.62e42fefa38p-1;  // 42 bits: k * kLn2Hi is exact
  constexpr double kLn2Lo = 0x1.ef35793c76730p-45;
  const double shifted = x * kLog2e + kRound;
  const double k = shifted - kRound;
  const double near = x - k * kLn2Hi;  // exact
  const double far = k * kLn2Lo - tail;
  const double r = near - far;
  const double r_lo = (near - r) - far;

  const double r2 = r * r, r4 = r2 * r2;
  const double q0 = (1.0 / 2) + r * (1.0 / 6);
  const double q2 = (1.0 / 24) + r * (1.0 / 120);
  const double q4 = (1.0 / 720) + r * (1.0 / 5040);
  const double q6 = (1.0 / 40320) + r * (1.0 / 362880);
  const double q8 = (1.0 / 3628800) + r * (1.0 / 39916800);
  const double q10 = (1.0 / 479001600) + r * (1.0 / 6227020800);
  const double q = (q0 + r2 * q2) + r4 * ((q4 + r2 * q6) + r4 * (q8 + r2 * q10));
  const double s = 1 + r;
  const double y = s + (((1 - s) + r) + (r_lo * s + r2 * q));

  return {y,
          static_cast<int64_t>(std::bit_cast<uint64_t>(shifted) - std::bit_cast<uint64_t>(kRound))};
}

double exp_pair(double x, double tail) {
  const auto [y, n] = exp_scaled(x, tail);
  if (n > 1023) return y * 0x1p1023 * power_of_two(n - 1023);
  if (n < -1022)
    return y * power_of_two(n + 1022) * 0x1p-1022;  // rounds once, when it becomes denormal
  return y * power_of_two(n);
}

// Returns log x as a pair, for 0 < x < inf. x = 2^k m with m between sqrt(1/2) and sqrt(2). With s
// = (m - 1) / (m + 1), log m = 2 atanh s = 2 s (1 + s^2/3 + s^4/5 + ...). s^2 < 0.0295, and the
// first omitted term is below 2^-76.
Pair log_pair(double x) {
  constexpr Pair kLn2 = {0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56};
  constexpr int64_t kSqrtHalf = 0x3FE6A09E667F3BCD;  // bits of sqrt(1/2)
  int64_t k = 0;
  if (x < std::numeric_limits<double>::min()) {
    x *= 0x1p54;
    k = -54;
  }
  const int64_t bits = std::bit_cast<int64_t>(x);
  const int64_t exponent = (bits - kSqrtHalf) >> 52;
  const double m = std::bit_cast<double>(bits - (exponent << 52));
  k += exponent;

  const Pair s = Pair{m - 1, 0} / exact_sum(m, 1);
  const Pair s2 = s * s;
  Pair series = {0, 0};
  for (int n = 14; n >= 0; --n) {
    series = series * s2 + Pair{1, 0} / Pair{2.0 * n + 1, 0};
  }
  const Pair log_m = Pair{2 * s.hi, 2 * s.lo} * series;
  return kLn2 * Pair{static_cast<double>(k), 0} + log_m;
}

}  // namespace

double exp(double x) {
  if (x > -746 && x < 710) return exp_pair(x, 0);
  return x >= 710 ? kInfinity : x <= -746 ? 0 : kNan;
}

void exp_all(double* x, size_t n) {
  constexpr size_t kStrip = 64;
  for (size_t at = 0; at < n; at += kStrip) {
    const size_t end = std::min(at + kStrip, n);
    // true if all results are normal: the loop then needs no branch and vectorizes
    bool normal = true;
    for (size_t i = at; i < end; ++i) normal &= x[i] > -708 && x[i] < 709;
    for (size_t i = at; normal && i < end; ++i) {
      const Scaled e = exp_scaled(x[i], 0);
      x[i] = e.y * power_of_two(e.n);
    }
    for (size_t i = at; !normal && i < end; ++i) x[i] = exp(x[i]);
  }
}

double log(double x) {
  if (x > 0 && x < kInfinity) {
    const Pair y = log_pair(x);
    return y.hi + y.lo;
  }
  return x == 0 ? -kInfinity : x > 0 ? x : kNan;
}

double pow(double base, double y) {
  if (y == 0 || base == 1) return 1;
  if (!(base >= 0) || y != y) return kNan;
  if (base == 0 || base == kInfinity) return (base == 0) == (y < 0) ? kInfinity : 0;
  const Pair l = log_pair(base);
  const double estimate = y * l.hi;
  if (estimate >= 710) return kInfinity;
  if (estimate <= -746) return 0;
  const Pair t = Pair{y, 0} * l;
  return exp_pair(t.hi, t.lo);
}

void sincos(double x, double* s, double* c) {
  // pi / 2 in four parts. The first three have 30 bits, so k < 2^23 times each is exact.
  constexpr double kPart1 = 0x1.921fb54p+0, kPart2 = 0x1.10b46118p-30;
  constexpr double kPart3 = 0x1.313198ap-61, kPart4 = 0x1.701b839a25205p-92;
  constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
  if (!(magnitude(x) <= 1e7)) {
    *s = *c = kNan;
    return;
  }
  if (magnitude(x) < 0x1p-27) {  // keeps -0 and denormals
    *s = x;
    *c = 1;
    return;
  }
  const double shifted = x * kTwoOverPi + kRound;
  const double k = shifted - kRound;
  Pair r = exact_sum(x - k * kPart1, -(k * kPart2));
  r = r + Pair{-(k * kPart3), 0} + Pair{-(k * kPart4), 0};

  // The low part of r is applied through the derivative.
  const double z = r.hi * r.hi;
  const double p = horner(kSine, z), q = horner(kCosine, z);
  const double half = 0.5 * z;
  const double w = 1 - half;
  const double sine = r.hi + (r.hi * z * p + r.lo * w);
  const double cosine = w + (((1 - w) - half) + (z * z * q - r.hi * r.lo));

  const uint64_t quadrant = std::bit_cast<uint64_t>(shifted) & 3;  // x = r + k pi / 2
  const double turned_sine = quadrant & 1 ? cosine : sine;
  const double turned_cosine = quadrant & 1 ? sine : cosine;
  *s = quadrant >= 2 ? -turned_sine : turned_sine;
  *c = quadrant == 1 || quadrant == 2 ? -turned_cosine : turned_cosine;
}

}  // namespace stet::math
