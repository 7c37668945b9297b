// Splits tensors that hold all experts of a layer into one tensor for each expert.
#pragma once

#include <string>
#include <vector>

#include "stet/files/tensor.hpp"
#include "stet/model/config.hpp"

namespace stet {

// Splits tensors that hold all experts of a layer. Each becomes one tensor for each expert and
// matrix, under the name that families ask for:
//
//   X.experts.gate_up_proj [E, 2I, H]            X.experts.N.{gate,up}_proj.weight [I, H]
//   X.experts.down_proj [E, H, I]                X.experts.N.down_proj.weight [H, I]
//   X.block_sparse_moe.input_linear.weight       as above, X.block_sparse_moe.experts.N...
//   X.block_sparse_moe.output_linear.weight
//
// Those of block_sparse_moe.experts are called w1, w3 and w2. Each view has its part of the bytes
// and names the file's tensor (TensorView::stack). Tensors of other shapes are kept unchanged.
std::vector<TensorView> split_experts(std::vector<TensorView> tensors);
// Returns true for the name of one expert's tensor.
bool is_of_expert(const std::string& name);
// Throws an unsupported Error that names `file` if the model has no experts to round to MXFP4.
void require_experts(const ModelConfig& config, const std::string& file);
// Returns the names of tensors that could have held this matrix of an expert.
std::vector<std::string> stacks_of(const std::string& expert);

}  // namespace stet
