#include "stet/kernels/streams.hpp"

#include <cmath>

#include "stet/kernels/math.hpp"

namespace stet {
namespace {

constexpr size_t kStreamLanes = 16;

// Sums in 16 lanes, lane i over elements i, i + 16, ...; then a tree: lane i += lane i+8, i+4, i+2,
// i+1.
template <class Step>
float lane_sum(size_t n, Step step) {
  float lanes[kStreamLanes] = {};
  for (size_t i = 0; i < n; ++i) lanes[i % kStreamLanes] = step(i, lanes[i % kStreamLanes]);
  for (size_t half = kStreamLanes / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

double polynomial(const double (&c)[8], double r) {
  double sum = c[0];
  for (size_t i = 1; i < 8; ++i) sum = sum * r + c[i];
  return sum;
}

constexpr double kMiddle[2][8] = {
    {2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
     13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608},
    {5226.495278852854561, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867,
     5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0}};
constexpr double kSides[2][8] = {
    {7.7454501427834140764e-4, 2.27238449892691845833e-2, 2.4178072517745061177e-1,
     1.27045825245236838258, 3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959,
     1.42343711074968357734},
    {1.05075007164441684324e-9, 5.475938084995344946e-4, 1.51986665636164571966e-2,
     1.4810397642748007459e-1, 6.8976733498510000455e-1, 1.6763848301838038494,
     2.05319162663775882187, 1.0}};
constexpr double kTails[2][8] = {
    {2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.2426609473880784386e-3,
     2.6532189526576123093e-2, 2.9656057182850489123e-1, 1.7848265399172913358,
     5.4637849111641143699, 6.6579046435011037772},
    {2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5,
     7.868691311456132591e-4, 1.48753612908506148525e-2, 1.3692988092273580531e-1,
     5.9983220655588793769e-1, 1.0}};

}  // namespace

void rescale_stream(float* y, float target, float own, size_t n) {
  const float least = std::sqrt(1e-5f), factor = target / (own > least ? own : least);
  for (size_t i = 0; i < n; ++i) y[i] *= factor;
}

void mix_streams(const float* x, const float* const* streams, const float* weight, size_t count,
                 float* y, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    float sum = 0;
    for (size_t j = 0; j < count; ++j) sum += weight[j] * streams[j][i];
    y[i] = x[i] + sum;
  }
}

void correct_stream(const float* x, const float* active, float weight, float* y, size_t n) {
  const float factor = 1 + weight;
  for (size_t i = 0; i < n; ++i) y[i] += factor * (x[i] - active[i]);
}

void mean_of_streams(const float* const* streams, size_t count, float* y, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    float sum = streams[0][i];
    for (size_t j = 1; j < count; ++j) sum += streams[j][i];
    y[i] = sum / static_cast<float>(count);
  }
}

void drop_below(float* x, float deviations, size_t n) {
  const auto count = static_cast<float>(n);
  const float mean = lane_sum(n, [&](size_t i, float sum) { return sum + x[i]; }) / count;
  const float variance = lane_sum(n,
                                  [&](size_t i, float sum) {
                                    const float d = x[i] - mean;
                                    return sum + d * d;
                                  }) /
                         count;
  const float floor = mean + deviations * std::sqrt(variance);
  for (size_t i = 0; i < n; ++i) {
    const float over = x[i] - floor;
    x[i] = over > 0 ? over : over == over ? 0 : over;
  }
}

double normal_quantile(double p) {
  const double q = p - 0.5;
  if (std::fabs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return polynomial(kMiddle[0], r) * q / polynomial(kMiddle[1], r);
  }
  const double r = std::sqrt(-math::log(q <= 0 ? p : 1 - p));
  const double x = r <= 5 ? polynomial(kSides[0], r - 1.6) / polynomial(kSides[1], r - 1.6)
                          : polynomial(kTails[0], r - 5) / polynomial(kTails[1], r - 5);
  return q < 0 ? -x : x;
}

}  // namespace stet
