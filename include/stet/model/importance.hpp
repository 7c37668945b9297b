// How much the inputs of a model's matrices matter, measured on text: rounding to blocks weighs its
// errors by it. The idea, and that the mean square of an input is what counts, are llama.cpp's
// ("importance matrix").
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "stet/api.h"
#include "stet/files/tensor.hpp"
#include "stet/model/points.hpp"
#include "stet/model/rows.hpp"

namespace stet {

class STET_API Importance {
 public:
  explicit Importance(ModelConfig config) : config_(std::move(config)) {}

  // Where the inputs of the model's matrices are looked at: what Watch::points takes.
  std::vector<PointAt> points() const;
  // Rows of one of them, as Watch::sink gets them: in the order of positions, by one thread.
  void add(const PointAt& at, Rows rows);
  // Of the matrix that is called so in a checkpoint, without what differs between those of a family
  // ("layers.0.mlp.up_proj.weight"): for each of its inputs the mean square, so scaled that they
  // are 1 on the average, and none 0. Empty where nothing was added, and for what is looked up.
  std::vector<float> of(const std::string& name) const;

 private:
  ModelConfig config_;
  std::map<std::pair<Point, int64_t>, std::vector<double>> squares_;  // sums: [columns]
};

// To which blocks of ggml a checkpoint's matrices are rounded: q4_k, q5_k or q6_k.
struct BlockRounding {
  DType type;
  const Importance* importance = nullptr;  // not owned; null: errors weigh by what is rounded alone
};

}  // namespace stet
