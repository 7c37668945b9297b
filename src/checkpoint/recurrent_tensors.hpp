// Tensors of models with recurrent layers, in one form whatever the checkpoint's layout.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "stet/checkpoint/tensor_source.hpp"

namespace stet {

// The tensor `index` of a source.
struct SourceTensor {
  const TensorSource* source;
  size_t index;

  const TensorView& view() const { return source->tensors()[index]; }
};

// Values of the config that no tensor's shape shows: heads of keys, and their dimension.
struct KeyHeads {
  int64_t heads = 0, dim = 0;
  bool gated = false;  // the output of attention has a gate
  int64_t taps = 0;    // inputs of a convolution; 0: unknown
};

// The names of tensors that are replaced, and the sources of their replacements.
struct RecurrentTensors {
  std::vector<std::string> replaced;
  std::vector<std::unique_ptr<const TensorSource>> sources;
};

// Returns whether the config is needed. It is for convolutions of three dimensions, and if the
// checkpoint packs the projections of each key head together. It also is if queries have twice as
// many rows as their outputs have columns.
bool needs_key_heads(const std::map<std::string, SourceTensor>& all);

// Brings these tensors into the form that families ask for:
//
//   X.A_log [heads]                         X.A: -exp(A_log), in float32
//   X.conv1d.weight, X.conv.conv.weight     [channels taps] for [channels, 1, taps] and, as GGUF
//                                           files have it, [channels, taps]
//   X.mamba.A, X.mamba.D, X.mamba.norm      [n] for two dimensions, which GGUF files have
//   X.linear_attn.in_proj_qkvz              X.linear_attn.in_proj_qkv: all queries, keys, values;
//                                           X.linear_attn.in_proj_z
//   X.linear_attn.in_proj_ba                X.linear_attn.in_proj_b, X.linear_attn.in_proj_a
//   X.self_attn.q_proj [heads 2 dim, H]     X.self_attn.q_proj, X.self_attn.q_gate [heads dim, H],
//                                           where o_proj has heads dim columns, in models
//                                           with .linear_attn. tensors or KeyHeads::gated
//   X.shared_mlp.input_linear [2 I, H]      X.mlp.gate_proj, X.mlp.up_proj [I, H]
//   X.shared_mlp.output_linear              X.mlp.down_proj
//
// Throws a format Error for shapes that do not fit one another.
RecurrentTensors recurrent_tensors(const std::map<std::string, SourceTensor>& all, KeyHeads keys);

}  // namespace stet
