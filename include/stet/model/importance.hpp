// Importance of the inputs of a model's matrices, measured on text. Quantization to blocks
// minimizes rounding errors weighted by it. The idea of using an input's mean square is llama.cpp's
// ("importance matrix").
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "stet/api.h"
#include "stet/files/tensor.hpp"
#include "stet/model/points.hpp"
#include "stet/model/rows.hpp"

namespace stet {

// Accumulates the squares of a model's matrix inputs.
class STET_API Importance {
 public:
  explicit Importance(ModelConfig config) : config_(std::move(config)) {}

  // Returns the points where the matrices' inputs are captured, for Watch::points.
  std::vector<PointAt> points() const;
  // Adds rows of one point, as Watch::sink receives them: in order of positions, by one thread. The
  // points come in the order of points().
  void add(const PointAt& at, Rows rows);
  // Returns the mean square of each input of a matrix, scaled to an average of 1, none of them 0.
  // `name` is the tensor's name without the family's prefix ("layers.0.mlp.up_proj.weight").
  // Returns an empty vector if nothing was added, for an expert that no row chose, or for a lookup
  // table.
  std::vector<float> of(const std::string& name) const;

 private:
  using Input = std::tuple<Point, int64_t, int64_t>;  // point, layer, expert (0 for all rows)
  void add_squares(const Input& input, const float* x, size_t width);

  ModelConfig config_;
  std::map<Input, std::vector<double>> squares_;  // sums of squares: [columns]
  std::vector<int64_t> chosen_;  // the last rows of expert_indices: [rows][experts per token]
};

// The ggml block type for a checkpoint's matrices: q4_k, q5_k, q6_k or, for experts, mxfp4.
struct BlockRounding {
  DType type;
  const Importance* importance = nullptr;  // not owned; null: weight errors by the values alone
};

}  // namespace stet
