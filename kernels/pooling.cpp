// Pooling of hidden states into one embedding (pooling.hpp).
#include "stet/kernels/pooling.hpp"

#include <cmath>

#include "stet/kernels/kernels.hpp"

namespace stet {

void add_row(const float* row, double* sum, size_t n) {
  for (size_t i = 0; i < n; ++i) sum[i] += static_cast<double>(row[i]);
}

void mean_of_rows(const double* sum, size_t rows, float* mean, size_t n) {
  for (size_t i = 0; i < n; ++i) mean[i] = static_cast<float>(sum[i] / static_cast<double>(rows));
}

void make_unit_length(float* x, size_t n) {
  double lanes[kLanes] = {};
  for (size_t i = 0; i < n; ++i) {
    const double value = x[i];
    lanes[i % kLanes] += value * value;  // the square is exact
  }
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  const double length = std::sqrt(lanes[0]);
  if (length == 0) return;
  for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(x[i] / length);
}

}  // namespace stet
