// One trip of some tokens through the model: what the operations of a forward pass are given.
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

// Consecutive tokens of one session inside a pass: rows [row, row + count), positions from `first`.
struct Span {
  KvCache* kv;
  int64_t first;
  size_t row, count;
};

// What layers of experts keep between the steps of a pass. A slot is one row of one expert. All of
// it is written and read within operations alone.
struct ExpertScratch {
  Memory memory;
  Rows logits, weights;  // [rows][experts]
  Rows chosen;           // [rows][experts chosen], as numbers
  Rows hidden;           // [slots][width]: what the last matrices of experts read
  Rows out;              // [rows][hidden_size]: room for what the experts give
  // Of the rows that are computed together (group_by_expert()).
  std::vector<uint32_t> experts, first, rows, tiles;
  std::vector<float> slot_weights;
  size_t active = 0;
  std::vector<uint8_t> sound;  // [rows]: whether the logits of a row are finite
  // The first layer, and row of the pass, whose router gave a logit that is not finite; -1: none.
  int64_t failed_layer = -1;
  size_t failed_row = 0;
};

// Scratch memory of a pass, sized once for the largest pass, the number of threads and the
// capacity.
struct Scratch {
  Memory packed;  // a block of rows, packed for the tile kernel
  // Per thread: a panel and its sums; rounded inputs; queries, partial results of attention.
  std::vector<Memory> local;
  Memory partial;  // attention over few rows: what tiles of queries saw of each block
  std::vector<Memory> tables;
  std::vector<Rows> cos, sin;  // per Rope: [rows][head_dim / 2], in `tables`
  ExpertScratch experts;
};

class Hooks;  // hooks.hpp

// One trip of some tokens through the model.
struct Pass {
  const Kernels* kernels;
  Contract contract;
  std::span<const int32_t> ids;  // [rows]
  std::span<const Span> spans;
  Scratch* scratch;
  const Hooks* hooks;  // null: nobody looks, nothing is changed

  // Activations. q, k and v are columns of qkv; gate and up are those of gate_up.
  Rows x, normed, qkv, attention, gate_up, mlp, out;

  // Not 0: x is the residual stream before this layer already, and the keys and values of the
  // layers below are in the caches.
  size_t first_layer = 0;

  // Called by one of the threads when a layer is done; null: nobody asks. It may not throw.
  const std::function<void()>* after_layer = nullptr;
};

}  // namespace stet
