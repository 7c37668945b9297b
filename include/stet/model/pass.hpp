// One pass of some tokens through the model: the arguments of the operations of a forward pass.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "stet/base/memory.hpp"
#include "stet/kernels/kernels.hpp"
#include "stet/kv/kv_cache.hpp"
#include "stet/model/contract.hpp"
#include "stet/model/rows.hpp"

namespace stet {

class RecurrentInputs;  // recurrent_inputs.hpp

// Consecutive tokens of one session in a pass: rows [row, row + count), positions from `first` on.
struct Span {
  KvCache* kv;
  int64_t first;
  size_t row, count;
  // The recurrent arrays before the first row, and after the last that is not drafted
  // (RecurrentShape). The layers write all of recurrent_after. Null for a model without recurrent
  // layers.
  const float* recurrent_before = nullptr;
  float* recurrent_after = nullptr;
  // The last rows may be guesses. Recurrent layers write their inputs to `inputs`; the arrays after
  // these rows are not kept.
  size_t drafted = 0;
  RecurrentInputs* inputs = nullptr;

  size_t kept() const { return count - drafted; }
};

// Scratch memory of layers with experts. A slot is one row of one expert. It is written and read
// only within operations.
struct ExpertScratch {
  Memory memory;
  Rows logits, weights;  // [rows][experts]
  Rows chosen;           // [rows][experts per token]: indices of experts, as floats
  Rows hidden;           // [slots][width]: inputs of the down projections
  Rows out;              // [rows][hidden_size]: room for the experts' output
  // The rows that are computed together, grouped by expert (group_by_expert()).
  std::vector<uint32_t> experts, first, rows, tiles;
  std::vector<float> slot_weights;
  size_t active = 0;
  std::vector<uint8_t> sound;  // [rows]: 1 if the router's logits are finite
  // The first layer, and row of the pass, with a router logit that is not finite; -1: none.
  int64_t failed_layer = -1;
  size_t failed_row = 0;
};

// Scratch memory of a pass, sized once for the largest pass, the number of threads and the
// capacity.
struct Scratch {
  Memory packed;  // a block of rows, packed for the tile kernel
  // One buffer per thread. It holds a panel and its sums, rounded inputs, or queries and partial
  // results of attention.
  std::vector<Memory> local;
  Memory partial;  // decoding attention: the sums of each tile of queries over each block
  std::vector<Memory> tables;
  std::vector<Rows> cos, sin;  // per Rope: [rows][head_dim / 2], in `tables`
  ExpertScratch experts;
};

class Hooks;  // hooks.hpp

// One pass of some tokens through the model.
struct Pass {
  const Kernels* kernels;
  Contract contract;
  std::span<const int32_t> ids;  // [rows]
  std::span<const Span> spans;
  Scratch* scratch;
  const Hooks* hooks;  // null: no hooks

  // Activations. q, k and v are columns of qkv; gate and up are columns of gate_up.
  Rows x, normed, qkv, attention, gate_up, mlp, out;
  // The family's own activations (Model::own_widths). They may have more rows than the pass.
  std::span<const Rows> own = {};

  // The first layer to run. If not 0, x already holds the residual stream before this layer, and
  // the caches hold the keys and values of the layers below.
  size_t first_layer = 0;

  // Called by one thread after each layer; may be null. It must not throw.
  const std::function<void()>* after_layer = nullptr;
};

}  // namespace stet
