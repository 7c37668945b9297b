// The arrays of recurrent layers in the shapes in which other programs publish them, as `stet
// export`, C and Python give them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stet/model/config.hpp"

namespace stet {

// An array of a recurrent layer in its published shape. Mamba-2's state is stored
// [heads][d_state][head_dim] and published [heads][head_dim][d_state]. All other arrays are
// published as they are stored.
struct PublishedArray {
  int64_t layer = 0, index = 0;  // index: among the arrays of the layer
  std::string name;              // "state" or "conv"
  std::vector<int64_t> dims;     // as published; the last varies fastest
  bool transposed = false;       // the last two dimensions are stored the other way round

  size_t count() const {
    size_t n = 1;
    for (const int64_t d : dims) n *= static_cast<size_t>(d);
    return n;
  }
  // publish() and store() copy between the two forms. Both spans have count() numbers and do not
  // overlap.
  void publish(std::span<const float> stored, std::span<float> published) const {
    copy(stored, published, transposed ? dims[1] : 1);
  }
  void store(std::span<const float> published, std::span<float> stored) const {
    copy(published, stored, transposed ? dims[2] : 1);
  }

 private:
  // Copies, and transposes if needed. `rows` are the rows of the result.
  void copy(std::span<const float> from, std::span<float> to, int64_t rows) const {
    const size_t matrix = transposed ? static_cast<size_t>(dims[1] * dims[2]) : from.size(),
                 height = static_cast<size_t>(rows), width = matrix / height;
    for (size_t i = 0; i < to.size(); ++i) {
      const size_t within = i % matrix;
      to[i] = from[i - within + within % width * height + within / width];
    }
  }
};

// Returns all arrays of a model, layer by layer. Empty if they have no numbers: such a model keeps
// no RecurrentState.
inline std::vector<PublishedArray> published_arrays(const ModelConfig& config) {
  const RecurrentShape shape = recurrent_shape(config);
  if (shape.empty()) return {};
  const bool mamba = config.recurrence.kind == Recurrence::Kind::mamba2;
  std::vector<PublishedArray> all;
  for (size_t l = 0; l < shape.layers.size(); ++l) {
    for (size_t i = 0; i < shape.layers[l].size(); ++i) {
      const RecurrentArray& a = shape.layers[l][i];
      PublishedArray p{static_cast<int64_t>(l), static_cast<int64_t>(i), a.name, a.dims,
                       mamba && a.dims.size() == 3};
      if (p.transposed) std::swap(p.dims[1], p.dims[2]);
      all.push_back(std::move(p));
    }
  }
  return all;
}

}  // namespace stet
