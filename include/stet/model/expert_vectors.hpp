// Products of experts with few rows: a matrix-vector product of each expert.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "stet/model/expert_rows.hpp"
#include "stet/model/ops-inl.hpp"

namespace stet::detail {

// Local memory of one thread: outputs, rounded inputs, and the gathered inputs of one expert.
struct ExpertRoom {
  ExpertRoom(const Pass& p, int rank) : at(p.scratch->local[static_cast<size_t>(rank)].data()) {}

  float* outputs(size_t i) const {
    return reinterpret_cast<float*>(at) + i * kGemvRows * kExpertOutputs;
  }
  template <class Input>
  Input* inputs() const {
    return reinterpret_cast<Input*>(at + kExpertOutputBytes);
  }

  std::byte* at;
};

// Rows of x in the form that the kernels of a type take. Each thread rounds them when it first
// needs them.
template <class Input>
struct ExpertInputs {
  ExpertInputs(const VectorKernels<Input>& kernels, Rows all, const ExpertRoom& room)
      : v(kernels), x(all), own(room.inputs<Input>()) {}

  void round() {
    if constexpr (!std::is_same_v<Input, float>) {
      for (size_t r = 0; !rounded && r < x.count; ++r)
        v.round(x.row(r), v.depth, own + r * v.per_row);
    }
    rounded = true;
  }
  size_t stride() const { return std::is_same_v<Input, float> ? x.stride : v.per_row; }
  const Input* row(size_t r) const {
    if constexpr (std::is_same_v<Input, float>)
      return x.row(r);
    else
      return own + r * v.per_row;
  }
  // Returns a pointer to the first of n rows, and the distance from one to the next. Copies the
  // rows unless they are consecutive.
  std::pair<const Input*, size_t> gather(const uint32_t* rows, size_t n) {
    round();
    if (rows[n - 1] - rows[0] == n - 1) return {row(rows[0]), stride()};
    Input* const to = own + (std::is_same_v<Input, float> ? 0 : x.count * v.per_row);
    for (size_t i = 0; i < n; ++i)
      std::memcpy(to + i * v.per_row, row(rows[i]), v.per_row * sizeof(Input));
    return {to, v.per_row};
  }

  const VectorKernels<Input>& v;
  Rows x;
  Input* own;
  bool rounded = false;
};

// Computes products of one or two matrices of equal type for all experts, some outputs at a time.
// Calls finish(expert, first output, outputs, products) for each.
template <class Input, class Finish>
void few_hidden(const LayerPass& at, const VectorKernels<Input>& v, const Experts& e,
                const Matrix& w, const Matrix* second, const ExpertRows& rows, Rows x,
                const Finish& finish) {
  const Pass& p = at.p;
  const ExpertScratch& s = p.scratch->experts;
  const ExpertRoom room(p, at.t.rank);
  ExpertInputs<Input> inputs(v, x, room);
  const size_t blocks = w.blocks() / e.count,
               least =
                   std::max<size_t>(1, kPieceBytes / w.block_bytes() / (second != nullptr ? 2 : 1));
  at.t.each_range(rows.experts * blocks, least, [&](Range some) {
    for (size_t i = some.begin; i < some.end && i / blocks < s.active;) {
      const ActiveExpert expert(s, i / blocks);
      const size_t block = i % blocks, n = std::min({blocks - block, some.end - i, kExpertBlocks});
      const auto [from, stride] = inputs.gather(s.rows.data() + expert.first, expert.rows);
      for (const Matrix* m : {&w, second}) {
        if (m == nullptr) continue;
        v.gemv(m->block(expert.id * blocks + block), n, v.depth, from, stride,
               room.outputs(m == &w ? 0 : 1), kExpertOutputs, static_cast<int>(expert.rows));
      }
      finish(expert, block * kLanes, std::min(n * kLanes, e.width - block * kLanes), room);
      i += n;
    }
  });
}

// Adds biases to some of an expert's outputs and gates them. It is a struct, because compilers
// number lambdas of different signatures in different ways.
struct GateSteps {
  const Kernels& k;
  const Experts& e;
  Gate f;

  void bias(const ActiveExpert& expert, size_t output, size_t n, float* gate) const {
    add_bias(k, e.gate_bias, expert.id * e.width + output, gate, n);
  }
  // `gate` has its bias already.
  void apply(const ActiveExpert& expert, size_t output, size_t n, float* gate, float* up,
             float* to) const {
    add_bias(k, e.up_bias, expert.id * e.width + output, up, n);
    gate_kernel(k, f)(gate, up, to, n);
  }
};

// Computes the inputs of the experts' down projections: the gated products of gate and up, with
// biases. Its lambdas list what they capture: compilers order implicit captures of generic lambdas
// in different ways, and a program may have parts by several compilers.
inline void few_gates(const LayerPass& at, const Experts& e, Gate f, const ExpertRows& rows,
                      Rows x) {
  const Pass& p = at.p;
  const Rows hidden = p.scratch->experts.hidden;
  const GateSteps steps{*p.kernels, e, f};
  if (e.gate.type() == e.up.type()) {
    with_vectors(p, e.gate, [&at, &e, &rows, &x, &hidden, &steps](const auto& v) {
      few_hidden(at, v, e, e.gate, &e.up, rows, x,
                 [&hidden, &steps](const ActiveExpert& expert, size_t output, size_t n,
                                   const ExpertRoom& room) {
                   for (size_t r = 0; r < expert.rows; ++r) {
                     float* const gate = room.outputs(0) + r * kExpertOutputs;
                     steps.bias(expert, output, n, gate);
                     steps.apply(expert, output, n, gate, room.outputs(1) + r * kExpertOutputs,
                                 hidden.row(expert.first + r) + output);
                   }
                 });
    });
    return;
  }
  with_vectors(p, e.gate, [&at, &e, &rows, &x, &hidden, &steps](const auto& v) {
    few_hidden(at, v, e, e.gate, nullptr, rows, x,
               [&hidden, &steps](const ActiveExpert& expert, size_t output, size_t n,
                                 const ExpertRoom& room) {
                 for (size_t r = 0; r < expert.rows; ++r) {
                   float* const gate = hidden.row(expert.first + r) + output;
                   std::memcpy(gate, room.outputs(0) + r * kExpertOutputs, n * sizeof(float));
                   steps.bias(expert, output, n, gate);
                 }
               });
  });
  with_vectors(p, e.up, [&at, &e, &rows, &x, &hidden, &steps](const auto& v) {
    few_hidden(at, v, e, e.up, nullptr, rows, x,
               [&hidden, &steps](const ActiveExpert& expert, size_t output, size_t n,
                                 const ExpertRoom& room) {
                 for (size_t r = 0; r < expert.rows; ++r) {
                   float* const gate = hidden.row(expert.first + r) + output;
                   steps.apply(expert, output, n, gate, room.outputs(0) + r * kExpertOutputs, gate);
                 }
               });
  });
}

template <class Input>
void few_downs(const LayerPass& at, const VectorKernels<Input>& v, const Experts& e,
               const ExpertRows& rows, Rows y) {
  const Pass& p = at.p;
  const ExpertScratch& s = p.scratch->experts;
  const ExpertRoom room(p, at.t.rank);
  const size_t blocks = e.down.blocks() / e.count,
               least = std::max<size_t>(1, kPieceBytes / (e.down.block_bytes() * rows.experts));
  ExpertInputs<Input> inputs(v, s.hidden, room);
  at.t.each_range(blocks, least, [&](Range some) {
    inputs.x.count = s.first[s.active];
    inputs.round();
    for (size_t block = some.begin, n; block < some.end; block += n) {
      n = std::min(some.end - block, kExpertBlocks);
      const size_t column = block * kLanes, columns = std::min(n * kLanes, y.width - column);
      clear_columns(y, column, columns);
      for (size_t a = 0; a < s.active; ++a) {
        const ActiveExpert expert(s, a);
        v.gemv(e.down.block(expert.id * blocks + block), n, v.depth, inputs.row(expert.first),
               inputs.stride(), room.outputs(0), kExpertOutputs, static_cast<int>(expert.rows));
        for (size_t r = 0; r < expert.rows; ++r)
          add_weighted(p, e, expert, r, column, columns, room.outputs(0) + r * kExpertOutputs, y);
      }
    }
  });
}

}  // namespace stet::detail
