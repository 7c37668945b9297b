// Rounds weights to ggml's K types like its reference functions (quantize_row_q4_K_ref, _q5_K_ref,
// _q6_K_ref in ggml-quants.c). The search has the same candidate scales and deciding sums. With an
// importance matrix, it weights errors by the matrix and by magnitudes.
//
// Every operation is rounded separately, so that bits do not depend on the compiler. Builds of ggml
// with fused multiply-adds may decide otherwise if two candidates are almost equal.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/quantize.hpp"
#include "stet/kernels/numbers.hpp"

namespace stet {
namespace {

constexpr int kParts = 8, kPart = 32, kSixParts = 16, kSixPart = 16;

// Returns the nearest integer, ties to even; 0 if x is too large or NaN.
int nearest_integer(float x) {
  if (!(std::fabs(x) <= 4194303.0f)) return 0;
  const float magic = 12582912.0f;  // 1.5 * 2^23
  return static_cast<int>(x + magic - magic);
}
int nearest_integer(float x, int low, int high) {
  return std::clamp(nearest_integer(x), low, high);
}

// Parameters of the search for scales and minimums of a part of q4_k or q5_k.
struct Search {
  int top;      // the largest u
  float first;  // the first candidate has top + first steps from the least to the largest weight
  int steps;    // further candidates, each a tenth of a step more
};

struct ScaleMinimum {
  float scale = 0, minimum = 0;  // w is about scale * u - minimum
  int u[kPart] = {};
};

float weighted_error(const float* x, const float* weight, const int* u, float scale, float least) {
  float sum = 0;
  for (int i = 0; i < kPart; ++i) {
    const float miss = scale * static_cast<float>(u[i]) + least - x[i];
    sum += weight[i] * (miss * miss);
  }
  return sum;
}

// Computes scale and minimum of least weighted squares for given u. Returns false if they are
// undetermined.
bool least_squares(const float* x, const float* weight, const int* u, float* scale, float* least) {
  float sum_w = 0, sum_x = 0, sum_u = 0, sum_u2 = 0, sum_xu = 0;
  for (int i = 0; i < kPart; ++i) {
    const float l = static_cast<float>(u[i]), w = weight[i];
    sum_w += w;
    sum_x += w * x[i];
    sum_u += w * l;
    sum_u2 += w * l * l;
    sum_xu += w * l * x[i];
  }
  const float determinant = sum_w * sum_u2 - sum_u * sum_u;
  if (!(determinant > 0)) return false;
  *scale = (sum_w * sum_xu - sum_x * sum_u) / determinant;
  *least = (sum_u2 * sum_x - sum_u * sum_xu) / determinant;
  if (*least > 0) {
    *least = 0;
    *scale = sum_xu / sum_u2;
  }
  return true;
}

// Computes the weight of each element's error.
void weigh(const float* x, const float* importance, float* weight) {
  float square = 0;
  for (int i = 0; i < kPart; ++i) square += x[i] * x[i];
  const float typical = std::sqrt(square / kPart);
  for (int i = 0; i < kPart; ++i)
    weight[i] = (typical + std::fabs(x[i])) * (importance == nullptr ? 1.0f : importance[i]);
}

ScaleMinimum search(const float* x, const float* importance, const Search& s) {
  float weight[kPart];
  weigh(x, importance, weight);
  const float most = *std::max_element(x, x + kPart);
  float least = std::min(0.0f, *std::min_element(x, x + kPart));
  ScaleMinimum best;
  best.minimum = -least;
  if (most - least < 1e-10f) return best;
  const auto rounded = [&](float steps, int* u) {  // counted from the best minimum so far
    const float inverse = steps / (most - least);
    for (int i = 0; i < kPart; ++i) u[i] = nearest_integer(inverse * (x[i] - least), 0, s.top);
  };
  rounded(static_cast<float>(s.top), best.u);
  best.scale = 1 / (static_cast<float>(s.top) / (most - least));
  float error = weighted_error(x, weight, best.u, best.scale, least);
  for (int step = 0; step <= s.steps; ++step) {
    ScaleMinimum other;
    float other_least = 0;
    rounded(s.first + 0.1f * static_cast<float>(step) + static_cast<float>(s.top), other.u);
    if (!least_squares(x, weight, other.u, &other.scale, &other_least)) continue;
    const float other_error = weighted_error(x, weight, other.u, other.scale, other_least);
    if (!(other_error < error)) continue;
    error = other_error;
    least = other_least;
    other.minimum = -least;
    best = other;
  }
  return best;
}

void put_half(uint8_t* to, uint16_t bits) { std::memcpy(to, &bits, sizeof bits); }

// Packs eight scales and eight minimums of six bits into 12 bytes.
void put_six_bits(const int* scale, const int* minimum, uint8_t* to) {
  for (int i = 0; i < 4; ++i) {
    to[i] = static_cast<uint8_t>(scale[i] | (scale[4 + i] >> 4) << 6);
    to[4 + i] = static_cast<uint8_t>(minimum[i] | (minimum[4 + i] >> 4) << 6);
    to[8 + i] = static_cast<uint8_t>((scale[4 + i] & 15) | (minimum[4 + i] & 15) << 4);
  }
}

// Rounds to q4_k or q5_k: finds d, the minimums' d and the integers of all parts, then u again for
// these.
SuperIntegers round_super(const float* x, const float* importance, const Search& s) {
  ScaleMinimum part[kParts];
  float most_scale = 0, most_minimum = 0;
  for (int p = 0; p < kParts; ++p) {
    const float* const counts = importance == nullptr ? nullptr : importance + kPart * p;
    part[p] = search(x + kPart * p, counts, s);
    most_scale = std::max(most_scale, part[p].scale);
    most_minimum = std::max(most_minimum, part[p].minimum);
  }
  const float to_scale = most_scale > 0 ? 63.0f / most_scale : 0,
              to_minimum = most_minimum > 0 ? 63.0f / most_minimum : 0;
  SuperIntegers y;
  y.d = round_f16(most_scale / 63.0f);
  y.m = round_f16(most_minimum / 63.0f);
  for (int p = 0; p < kParts; ++p) {
    y.scale[p] = nearest_integer(to_scale * part[p].scale, 0, 63);
    y.minimum[p] = nearest_integer(to_minimum * part[p].minimum, 0, 63);
    const float d = widen_f16(y.d) * static_cast<float>(y.scale[p]),
                m = widen_f16(y.m) * static_cast<float>(y.minimum[p]);
    for (int i = 0; i < kPart; ++i)
      y.u[kPart * p + i] =
          d == 0 ? part[p].u[i] : nearest_integer((x[kPart * p + i] + m) / d, 0, s.top);
  }
  return y;
}

void put_nibbles(const int* u, uint8_t* to) {
  for (int first = 0; first < kParts * kPart; first += 2 * kPart, to += kPart) {
    for (int i = first; i < first + kPart; ++i)
      to[i - first] = static_cast<uint8_t>((u[i] & 15) | (u[i + kPart] & 15) << 4);
  }
}

// Searches the scale of 16 weights of q6_k for integers l of -32 .. 31. The error of a weight
// counts by its square or by its importance. Let `a = sum(w x l)` and `b = sum(w l l)`. The fit is
// `a^2 / b`, and the scale is `a / b`.
struct SixSearch {
  const float *x, *importance;
  int l[kSixPart] = {};
  float sum_x = 0, sum_l = 0, scale = 0, best = 0;

  float weight(int i) const { return importance == nullptr ? x[i] * x[i] : importance[i]; }
  // Takes another pair of sums if it fits better.
  bool take(float other_x, float other_l) {
    if (!(other_l > 0 && other_x * other_x > best * other_l)) return false;
    sum_x = other_x;
    sum_l = other_l;
    scale = sum_x / sum_l;
    best = scale * sum_x;
    return true;
  }
  void consider(float inverse) {
    int other[kSixPart];
    float other_x = 0, other_l = 0;
    for (int i = 0; i < kSixPart; ++i) {
      other[i] = nearest_integer(inverse * x[i], -32, 31);
      const float w = weight(i), f = static_cast<float>(other[i]);
      other_x += w * x[i] * f;
      other_l += w * f * f;
    }
    if (take(other_x, other_l)) std::copy_n(other, kSixPart, l);
  }
  // Moves the integer that is furthest off one step nearer. Returns false if that does not fit
  // better.
  bool step() {
    int at = -1;
    float furthest = 0;
    for (int i = 0; i < kSixPart; ++i) {
      const float off = scale * weight(i) * (x[i] - scale * static_cast<float>(l[i]));
      if (((off > 0 && l[i] < 31) || (off < 0 && l[i] > -32)) &&
          std::fabs(off) > std::fabs(furthest)) {
        furthest = off;
        at = i;
      }
    }
    if (at < 0) return false;
    const float w = weight(at);
    const int sign = furthest > 0 ? 1 : -1;
    const float more_x = w * x[at], more_l = w * static_cast<float>(2 * sign * l[at] + 1);
    if (!take(sign > 0 ? sum_x + more_x : sum_x - more_x, sum_l + more_l)) return false;
    l[at] += sign;
    return true;
  }
};

float search_six(const float* x, const float* importance) {
  const float* const top = std::max_element(
      x, x + kSixPart, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
  if (std::fabs(*top) < 1e-15f) return 0;
  SixSearch search{x, importance};
  search.consider(-32 / *top);
  for (int step = -9; step <= 9; ++step) {
    search.consider(-(32 + 0.1f * static_cast<float>(step)) / *top);
    search.consider((31 + 0.1f * static_cast<float>(step)) / *top);
  }
  for (int step = 0; step < kSixPart * 63 && search.step(); ++step) {
  }
  return search.scale;
}

}  // namespace

void store_super_q4(const SuperIntegers& from, uint8_t* to) {
  put_half(to, from.d);
  put_half(to + 2, from.m);
  put_six_bits(from.scale, from.minimum, to + 4);
  put_nibbles(from.u, to + 16);
}

void store_super_q5(const SuperIntegers& from, uint8_t* to) {
  put_half(to, from.d);
  put_half(to + 2, from.m);
  put_six_bits(from.scale, from.minimum, to + 4);
  for (int i = 0; i < kPart; ++i) {
    int fifth = 0;
    for (int p = 0; p < kParts; ++p) fifth |= (from.u[kPart * p + i] >> 4) << p;
    to[16 + i] = static_cast<uint8_t>(fifth);
  }
  put_nibbles(from.u, to + 48);
}

void store_super_q6(const SuperIntegers& from, uint8_t* to) {
  std::memset(to, 0, 210);
  put_half(to + 208, from.d);
  for (int p = 0; p < kSixParts; ++p) to[192 + p] = static_cast<uint8_t>(from.scale[p]);
  for (int w = 0; w < kSixParts * kSixPart; ++w) {
    const int part = w / 32 % 4, at = w / 128 * 32 + w % 32, u = from.u[w];
    to[w / 128 * 64 + part % 2 * 32 + w % 32] |=
        static_cast<uint8_t>((u & 15) << (part < 2 ? 0 : 4));
    to[128 + at] |= static_cast<uint8_t>(u >> 4 << (2 * part));
  }
}

void round_super_q4(std::span<const float, kSuperBlock> x, const float* importance, uint8_t* to) {
  store_super_q4(round_super(x.data(), importance, {15, -1.0f, 20}), to);
}

void round_super_q5(std::span<const float, kSuperBlock> x, const float* importance, uint8_t* to) {
  store_super_q5(round_super(x.data(), importance, {31, -0.5f, 15}), to);
}

void round_super_q6(std::span<const float, kSuperBlock> x, const float* importance, uint8_t* to) {
  float scale[kSixParts], most = 0;
  for (int p = 0; p < kSixParts; ++p) {
    scale[p] = search_six(x.data() + kSixPart * p,
                          importance == nullptr ? nullptr : importance + kSixPart * p);
    if (std::fabs(scale[p]) > std::fabs(most)) most = scale[p];
  }
  SuperIntegers y;
  if (std::fabs(most) < 1e-15f) return store_super_q6(y, to);
  const float inverse = -128.0f / most;
  y.d = round_f16(1 / inverse);
  for (int p = 0; p < kSixParts; ++p) {
    y.scale[p] = nearest_integer(inverse * scale[p], -128, 127);
    const float d = widen_f16(y.d) * static_cast<float>(y.scale[p]);
    for (int w = kSixPart * p; w < kSixPart * (p + 1); ++w)
      y.u[w] = 32 + (d == 0 ? 0 : nearest_integer(x[static_cast<size_t>(w)] / d, -32, 31));
  }
  store_super_q6(y, to);
}

}  // namespace stet
