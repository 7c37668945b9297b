// Activations and the weights that are applied to them.
#pragma once

#include <cstddef>
#include <vector>

#include "stet/model/matrix.hpp"

namespace stet {

// Activations: `count` rows of `width` float32, `stride` apart. Rows start on 64 bytes. In what
// linear layers read, the padding up to the next multiple of 64 is zero.
struct Rows {
  float* data = nullptr;
  size_t stride = 0;
  size_t width = 0;
  size_t count = 0;

  float* row(size_t i) const { return data + i * stride; }
  // Columns [begin, begin + n) of the same rows.
  Rows columns(size_t begin, size_t n) const { return {data + begin, stride, n, count}; }
  Rows rows(size_t begin, size_t n) const { return {data + begin * stride, stride, width, n}; }
};

using Vector = std::vector<float>;  // norm weights, biases

// A linear layer: y = W x + b. An empty bias adds nothing.
struct Linear {
  Matrix weight;
  Vector bias;
};

// The weights of a norm over [width] columns: of an RMS norm, or with a bias of a layer norm.
struct Norm {
  Vector weight;
  Vector bias;    // empty: an RMS norm
  float eps = 0;  // under the root
};

}  // namespace stet
