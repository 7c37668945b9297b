// Helpers of the kernel tests: guarded memory, fill patterns, comparison of bits, and the numeric
// contract restated in plain C++.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stet/kernels/kernels.hpp"

namespace stet::test {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kUnit = 0x1p-24;  // unit roundoff of float32

// Returns gamma_n = n u / (1 - n u), the bound on the relative error of n roundings (Higham,
// Accuracy and Stability of Numerical Algorithms, section 3.1).
inline double gamma(double n) { return n * kUnit / (1 - n * kUnit); }

inline uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }
inline float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }

// Returns the names of all kernel tables that this CPU can run.
inline std::vector<std::string> isa_names() {
  std::vector<std::string> names;
  for (const char* const* name = kernel_names(); *name != nullptr; ++name) names.push_back(*name);
  return names;
}

// A fixture that runs each test on one kernel table; a file instantiates it with isa_names().
class EachIsa : public testing::TestWithParam<std::string> {
 protected:
  const Kernels& k = *find_kernels(GetParam().c_str());
};

// A buffer of n elements that ends where an inaccessible page begins, so reading or writing past
// the end faults. The bytes before it hold a pattern that untouched() checks. A new buffer is
// filled with 0xFF, which is NaN in every float.
template <class T>
class Fenced {
 public:
  explicit Fenced(size_t n) : n_(n), bytes_((n * sizeof(T) + kBefore + kPage - 1) / kPage * kPage) {
    void* p =
        mmap(nullptr, bytes_ + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<std::byte*>(p);
    if (mprotect(base_ + bytes_, kPage, PROT_NONE) != 0) throw std::bad_alloc();
    std::memset(base_, 0xFF, bytes_);
    std::memset(base_ + bytes_ - n * sizeof(T) - kBefore, kPattern, kBefore);
  }
  Fenced(const std::vector<T>& values) : Fenced(values.size()) {
    std::copy(values.begin(), values.end(), data());
  }
  Fenced(Fenced&& other) noexcept
      : n_(other.n_), bytes_(other.bytes_), base_(std::exchange(other.base_, nullptr)) {}
  Fenced& operator=(Fenced&&) = delete;
  ~Fenced() {
    if (base_ != nullptr) munmap(base_, bytes_ + kPage);
  }

  T* data() const { return reinterpret_cast<T*>(base_ + bytes_) - n_; }
  T& operator[](size_t i) const { return data()[i]; }
  size_t size() const { return n_; }
  std::span<const T> span() const { return {data(), n_}; }
  bool untouched() const {
    const std::byte* before = reinterpret_cast<const std::byte*>(data()) - kBefore;
    return std::all_of(before, before + kBefore,
                       [](std::byte b) { return b == std::byte{kPattern}; });
  }

 private:
  static constexpr size_t kPage = 4096, kBefore = 256;
  static constexpr unsigned char kPattern = 0xA5;
  size_t n_, bytes_;
  std::byte* base_ = nullptr;
};

// A reproducible stream of pseudo-random numbers (SplitMix64).
class Stream {
 public:
  explicit Stream(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    state_ += 0x9E3779B97F4A7C15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  // Returns a number in [-1, 1) that uses all bits of the mantissa.
  float real() { return static_cast<float>(static_cast<int64_t>(next()) >> 32) * 0x1p-31f; }
  // Returns a number of either sign with a magnitude between 2^-12 and 2^12.
  float wide() {
    const int exponent = static_cast<int>(next() % 25) - 12;
    return std::ldexp(1.0f + std::fabs(real()), exponent) * (next() & 1 ? 1.0f : -1.0f);
  }
  // Returns a zero, a denormal, an infinity, a NaN or a value at the edge of the range one time in
  // four, otherwise wide().
  float special() {
    static const float kEdges[] = {
        0.0f,      -0.0f, 0x1p-149f, -0x1p-149f, 0x1.fffffcp-127f, -0x1.23456p-130f,
        0x1p-126f, kInf,  -kInf,     kNan,       0x1.fffffep127f,  -0x1.fffffep127f,
        1.0f,      -1.0f};
    return next() % 4 == 0 ? kEdges[next() % std::size(kEdges)] : wide();
  }

 private:
  uint64_t state_;
};

enum class Fill { real, wide, special };

inline std::vector<float> numbers(size_t n, uint64_t seed, Fill fill = Fill::real) {
  Stream s(seed);
  std::vector<float> out(n);
  for (float& x : out)
    x = fill == Fill::real ? s.real() : fill == Fill::wide ? s.wide() : s.special();
  return out;
}

// Compares bits. All NaNs are equal: the contract does not define their sign and payload.
inline bool same_bits(float a, float b) { return bits_of(a) == bits_of(b) || (a != a && b != b); }

// Returns the distance in representable numbers. Both zeros count as one number.
inline int64_t ulps_apart(float a, float b) {
  const auto ordered = [](float x) {
    const int64_t magnitude = bits_of(x) & 0x7FFFFFFF;
    return bits_of(x) >> 31 ? -magnitude : magnitude;
  };
  return std::abs(ordered(a) - ordered(b));
}

inline testing::AssertionResult equal_bits(std::span<const float> got,
                                           std::span<const float> expected) {
  if (got.size() != expected.size())
    return testing::AssertionFailure() << got.size() << " values, " << expected.size();
  for (size_t i = 0; i < got.size(); ++i) {
    if (same_bits(got[i], expected[i])) continue;
    return testing::AssertionFailure()
           << "[" << i << "] is " << std::hexfloat << got[i] << ", not " << expected[i]
           << std::defaultfloat << " (" << ulps_apart(got[i], expected[i]) << " ULP)";
  }
  return testing::AssertionSuccess();
}

// ---------------------------------------------------------------- 16-bit floats

inline double exact_bf16(uint16_t bits) {
  const int exponent = bits >> 7 & 0xFF, fraction = bits & 0x7F;
  const double magnitude = exponent == 255 ? (fraction == 0 ? HUGE_VAL : std::nan(""))
                           : exponent == 0 ? std::ldexp(fraction, -133)
                                           : std::ldexp(128 + fraction, exponent - 134);
  return bits >> 15 ? -magnitude : magnitude;
}
inline double exact_f16(uint16_t bits) {
  const int exponent = bits >> 10 & 0x1F, fraction = bits & 0x3FF;
  const double magnitude = exponent == 31  ? (fraction == 0 ? HUGE_VAL : std::nan(""))
                           : exponent == 0 ? std::ldexp(fraction, -24)
                                           : std::ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 ? -magnitude : magnitude;
}

// ---------------------------------------------------------------- the contract, restated

// Computes one output of a linear layer. w[k] and x[k], k even, are taken in the order 1, 0, 3, 2,
// ...
inline float plain_dot(const float* w, const float* x, size_t k) {
  float acc = 0;
  for (size_t i = 0; i < k; i += 2) {
    acc = std::fma(w[i + 1], x[i + 1], acc);
    acc = std::fma(w[i], x[i], acc);
  }
  return acc;
}

// Rounds to the nearest bfloat16, ties to even. Denormals become zeros of their sign.
inline uint16_t plain_bf16(float x) {
  const uint16_t down = static_cast<uint16_t>(bits_of(x) >> 16),
                 up = static_cast<uint16_t>(down + 1);
  if (x != x) return static_cast<uint16_t>(down | 0x40u);
  if (std::isinf(x)) return down;
  if (std::fabs(x) < 0x1p-126f) return down & 0x8000u;
  const auto magnitude = [](uint16_t bits) {
    return (bits & 0x7FFFu) == 0x7F80u ? 0x1p128 : std::fabs(exact_bf16(bits));
  };
  const double below = std::fabs(x) - magnitude(down), above = magnitude(up) - std::fabs(x);
  return below < above || (below == above && down % 2 == 0) ? down : up;
}

// Computes the FMA of contract bf16 for factors that are bfloat16, whose product is exact in
// float64. The sum is first rounded to odd in float64, so that rounding it to float32 equals a
// single rounding (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
// Scaling by 2^100 keeps the exponents away from float64's lower end.
inline float plain_flushed_fma(float w, float x, float acc) {
  const auto zeroed = [](float v) { return std::fabs(v) < 0x1p-126f ? std::copysign(0.0f, v) : v; };
  const double a = static_cast<double>(zeroed(acc)),
               product = static_cast<double>(zeroed(w)) * static_cast<double>(zeroed(x));
  double sum = a + product;
  if (!std::isfinite(sum)) return static_cast<float>(sum);
  const double taken = sum - a,
               error = (a - (sum - taken)) + (product - taken);  // Knuth's two-sum, exact
  if (error != 0 && std::bit_cast<uint64_t>(sum) % 2 == 0)
    sum = std::nextafter(sum, error > 0 ? HUGE_VAL : -HUGE_VAL);
  if (std::fabs(static_cast<float>(sum * 0x1p100)) < 0x1p-26f)
    return static_cast<float>(std::copysign(0.0, sum));
  return static_cast<float>(sum);
}

// Computes one output of a linear layer of contract bf16. w[k] are bfloat16 values, x[k] floats, k
// even.
inline float plain_dot_pairs(const float* w, const float* x, size_t k) {
  float acc = 0;
  for (size_t i = 0; i < k; i += 2) {
    for (size_t at : {i + 1, i})
      acc = plain_flushed_fma(w[at], static_cast<float>(exact_bf16(plain_bf16(x[at]))), acc);
  }
  return acc;
}

// Sums sixteen lanes in the tree order of the contract.
inline float plain_tree(const float (&lanes)[16]) {
  float a[16];
  std::copy(lanes, lanes + 16, a);
  for (int step : {8, 4, 2, 1}) {
    for (int i = 0; i < step; ++i) a[i] = a[i] + a[i + step];
  }
  return a[0];
}

inline std::vector<float> plain_rms_norm(const std::vector<float>& x, const std::vector<float>& w,
                                         float eps) {
  float lanes[16] = {};
  for (size_t i = 0; i < x.size(); ++i) lanes[i % 16] = std::fma(x[i], x[i], lanes[i % 16]);
  const float inverse = 1.0f / std::sqrt(plain_tree(lanes) / static_cast<float>(x.size()) + eps);
  std::vector<float> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * inverse * w[i];
  return y;
}

inline std::vector<float> plain_layer_norm(const std::vector<float>& x, const std::vector<float>& w,
                                           const std::vector<float>& b, float eps) {
  const float n = static_cast<float>(x.size());
  float sums[16] = {}, squares[16] = {};
  for (size_t i = 0; i < x.size(); ++i) sums[i % 16] = x[i] + sums[i % 16];
  const float mean = plain_tree(sums) / n;
  for (size_t i = 0; i < x.size(); ++i)
    squares[i % 16] = std::fma(x[i] - mean, x[i] - mean, squares[i % 16]);
  const float inverse = 1.0f / std::sqrt(plain_tree(squares) / n + eps);
  std::vector<float> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = (x[i] - mean) * inverse * w[i] + b[i];
  return y;
}

// Compute exp and tanh as the contract defines them, one number at a time.
inline float contract_exp(float x) {
  float y;
  kernels_portable.exp(&x, &y, 1);
  return y;
}
inline float contract_tanh(float x) {
  float y;
  kernels_portable.tanh(&x, &y, 1);
  return y;
}

// The result of one query against one block of 64 positions, before normalization.
struct PlainPart {
  float m, l;
  std::vector<float> o;  // [head_dim]
};
inline PlainPart plain_attend(const float* q, const float* k, const float* v, size_t head_dim,
                              size_t ldv, uint64_t mask, float scale, float softcap,
                              const float* k_scale = nullptr, const float* v_scale = nullptr) {
  float score[64], lanes[16] = {}, p[64] = {};
  PlainPart part{-kInf, 0, std::vector<float>(head_dim, 0.0f)};
  for (size_t t = 0; t < 64; ++t) {
    float chain = 0;
    for (size_t d = 0; d < head_dim; ++d) chain = std::fma(q[d], k[d * 64 + t], chain);
    if (k_scale != nullptr) chain *= k_scale[t];
    score[t] = chain * scale;
    if (softcap != 0) score[t] = softcap * contract_tanh(score[t] / softcap);
    if (mask >> t & 1 && score[t] > part.m) part.m = score[t];
  }
  for (size_t t = 0; t < 64; ++t) {
    if (mask >> t & 1) p[t] = contract_exp(score[t] - part.m);
    lanes[t % 16] += p[t];
  }
  part.l = plain_tree(lanes);
  for (size_t t = 0; v_scale != nullptr && t < 64; ++t) p[t] *= v_scale[t];
  for (size_t d = 0; d < head_dim; ++d) {
    for (size_t t = 0; t < 64; ++t) {
      if (mask >> t & 1) part.o[d] = std::fma(p[t], v[t * ldv + d], part.o[d]);
    }
  }
  return part;
}

// Merges the next block into `sum`. Blocks come in order of position, starting from m = -inf, l =
// 0, o = 0.
inline void plain_merge(PlainPart& sum, const PlainPart& next) {
  const float top = std::max(sum.m, next.m);
  const float keep = contract_exp(sum.m - top), take = contract_exp(next.m - top);
  sum.m = top;
  sum.l = std::fma(next.l, take, sum.l * keep);
  for (size_t d = 0; d < sum.o.size(); ++d) sum.o[d] = std::fma(next.o[d], take, sum.o[d] * keep);
}

// 32 inputs rounded to int8 as kernels.hpp describes. The floating-point environment must round to
// nearest even.
struct PlainInput {
  int q[kQuantBlock] = {};
  float scale = 0;
};

inline PlainInput plain_input(const float* x) {
  PlainInput block;
  float top = 0;
  bool finite = true;
  for (int i = 0; i < kQuantBlock; ++i) {
    finite = finite && std::isfinite(x[i]);
    top = std::max(top, std::isfinite(x[i]) ? std::fabs(x[i]) : 0);
  }
  if (!finite) block.scale = kNan;
  if (!finite || top < 0x1p-100f) return block;
  const float inverse = 127.0f / top;
  for (int i = 0; i < kQuantBlock; ++i)
    block.q[i] = static_cast<int>(std::nearbyint(x[i] * inverse));
  block.scale = top / 127.0f;
  return block;
}

}  // namespace stet::test
