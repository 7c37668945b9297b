// Splits the experts of gpt-oss. Published files have all experts of a layer in one tensor, with
// gates and ups in turn. Here each matrix is a tensor of its own, named as in other mixtures:
// "layers.0.mlp.experts.3.gate_proj.weight".
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stet/checkpoint/tensor_source.hpp"

namespace stet {

// A tensor as a file has it.
struct FileTensor {
  std::shared_ptr<const FileBytes> file;
  TensorView view;
};

// Returns whether a tensor of this name is one that only gpt-oss has: files that have it stack their
// experts in its way.
bool is_of_gpt_oss(const std::string& name);
// Returns whether a tensor of this name holds experts or the scales of experts.
bool is_gpt_oss_stack(const std::string& name);

// Returns the tensors of the experts that `stacks` hold, a source for each file:
//   X [experts][inputs][outputs], X_bias [experts][outputs]; or
//   X_blocks [experts][outputs][inputs / 32][16] with X_scales [experts][outputs][inputs / 32],
// where X is gate_up_proj or down_proj. X_blocks and X_scales become blocks of MXFP4.
// Throws a format Error for another shape or type, and for blocks without scales.
std::vector<std::unique_ptr<const TensorSource>> gpt_oss_experts(
    const std::vector<FileTensor>& stacks);

}  // namespace stet
