// Tensors that hold all experts of a layer, as those of each expert.
#pragma once

#include <vector>

#include "stet/files/tensor.hpp"

namespace stet {

// Splits tensors that hold all experts of a layer. Each becomes one tensor for each expert and
// matrix, under the name that families ask for:
//
//   X.experts.gate_up_proj [E, 2I, H]            X.experts.N.{gate,up}_proj.weight [I, H]
//   X.experts.down_proj [E, H, I]                X.experts.N.down_proj.weight [H, I]
//   X.block_sparse_moe.input_linear.weight       likewise, X.block_sparse_moe.experts.N...
//   X.block_sparse_moe.output_linear.weight
//
// Those of block_sparse_moe.experts are called w1, w3 and w2. Each shows its part of the bytes and
// names the tensor of the file (TensorView::stack). Tensors of other shapes stay what they are.
std::vector<TensorView> split_experts(std::vector<TensorView> tensors);

}  // namespace stet
