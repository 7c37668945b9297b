// Activations, and the weights of linear layers and norms.
#pragma once

#include <cstddef>
#include <vector>

#include "stet/model/matrix.hpp"

namespace stet {

// Activations: `count` rows of `width` float32, `stride` apart, each 64-byte aligned. In the input
// of a linear layer, the padding up to the next multiple of 64 is zero.
struct Rows {
  float* data = nullptr;
  size_t stride = 0;
  size_t width = 0;
  size_t count = 0;

  float* row(size_t i) const { return data + i * stride; }
  // Returns columns [begin, begin + n) of the same rows.
  Rows columns(size_t begin, size_t n) const { return {data + begin, stride, n, count}; }
  Rows rows(size_t begin, size_t n) const { return {data + begin * stride, stride, width, n}; }
};

using Vector = std::vector<float>;  // norm weights, biases

// A linear layer: y = W x + b. An empty bias adds nothing.
struct Linear {
  Matrix weight;
  Vector bias;
};

// The weights of a norm over [width] columns. A layer norm has a bias; an RMS norm has none.
struct Norm {
  Vector weight;
  Vector bias;    // empty for an RMS norm
  float eps = 0;  // added under the root
};

}  // namespace stet
