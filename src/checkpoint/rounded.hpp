// Tensors rounded to blocks of ggml.
#pragma once

#include <span>
#include <string>

#include "stet/files/tensor.hpp"

namespace stet {

// Returns any tensor that weights may be stored in, of shape [rows][columns] or, transposed,
// [columns][rows], as rows of blocks: Q4_K, Q5_K, Q6_K or, by the rule of the contract q8, Q8_0.
// `importance`: of each column for the K types, or empty. Throws an unsupported Error that names
// `file` and the weight for one that is not finite, or too large for a scale in float16.
OwnedTensor rounded_to_blocks(const TensorView& from, bool transposed, DType to,
                              std::span<const float> importance, int threads,
                              const std::string& file);

}  // namespace stet
