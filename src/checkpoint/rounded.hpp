// Tensors rounded to blocks of ggml.
#pragma once

#include <span>
#include <string>

#include "stet/base/memory.hpp"
#include "stet/checkpoint/tensor.hpp"

namespace stet {

// Any tensor that weights may be stored in, of shape [rows][columns] or, transposed,
// [columns][rows], as rows of blocks: Q4_K, Q5_K, Q6_K or, by the rule of the contract q8, Q8_0.
struct RoundedTensor {
  // `importance`: of each column for the K types, or empty. Throws an unsupported Error that names
  // `file` and the weight for one that is not finite, or too large for a scale in float16.
  RoundedTensor(const TensorView& from, bool transposed, DType to,
                std::span<const float> importance, int threads, const std::string& file);

  TensorView view;  // of `memory`
  Memory memory;
};

}  // namespace stet
