// Rounds tensors to ggml's blocks.
#pragma once

#include <span>
#include <string>

#include "stet/files/tensor.hpp"

namespace stet {

// Returns a tensor of any storable type, [rows][columns] or transposed [columns][rows], rounded to
// rows of blocks. Blocks are Q4_K, Q5_K, Q6_K, MXFP4, or Q8_0 by the rule of the contract q8.
// `importance` has a weight per column for the K types, or is empty. Throws an unsupported Error
// naming `file` and the weight if one is not finite, or too large for the type's scale.
OwnedTensor rounded_to_blocks(const TensorView& from, bool transposed, DType to,
                              std::span<const float> importance, int threads,
                              const std::string& file);

}  // namespace stet
