// Arithmetic of interventions (steer.hpp).
#include "stet/kernels/steer.hpp"

#include <algorithm>
#include <cmath>

namespace stet {
namespace {

float dot(const float* x, const float* y, size_t n) {
  float sum = 0;
  for (size_t i = 0; i < n; ++i) sum = std::fma(x[i], y[i], sum);
  return sum;
}

}  // namespace

void steer_add(float* x, const float* v, float a, size_t n) {
  if (a == 0) return;
  for (size_t i = 0; i < n; ++i) {
    if (v[i] != 0) x[i] = std::fma(a, v[i], x[i]);
  }
}

void steer_scale(float* x, float a, size_t n) {
  for (size_t i = 0; i < n; ++i) x[i] *= a;
}

void steer_project_out(float* x, const float* u, size_t n) {
  const float length = dot(u, u, n);
  if (length == 0) return;
  steer_add(x, u, -(dot(x, u, n) / length), n);
}

void steer_clamp(float* x, const float* encoder, const float* decoder, float bias, float threshold,
                 float value, size_t n) {
  const float sum = dot(x, encoder, n) + bias;
  steer_add(x, decoder, value - (sum > threshold ? sum : 0), n);
}

bool steer_products_finite(const float* v, float a, size_t n) {
  return std::all_of(v, v + n, [a](float x) { return std::isfinite(a * x); });
}

bool steer_length_finite(const float* u, size_t n) { return std::isfinite(dot(u, u, n)); }

}  // namespace stet
