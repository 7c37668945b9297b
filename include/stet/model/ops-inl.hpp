// Implements ops.hpp.
#pragma once

#include <algorithm>
#include <span>
#include <type_traits>

#include "stet/kernels/rope.hpp"
#include "stet/model/expert_scratch.hpp"
#include "stet/model/ops.hpp"

namespace stet {

STET_INL void embed(Team t, const Pass& p, const Matrix& table, float scale, Rows x) {
  detail::each_row(t, x.count, [&](size_t r) {
    table.gather(static_cast<size_t>(p.ids[r]), x.row(r));
    if (scale != 1.0f) p.kernels->scale(x.row(r), scale, x.width);
  });
}

STET_INL void embed_positions(Team t, const Pass& p, const Matrix& table, Rows x) {
  for (const Span& span : p.spans) {
    detail::each_row(t, span.count, [&](size_t i) {
      table.gather(static_cast<size_t>(span.first) + i, x.row(span.row + i));
    });
  }
}

namespace detail {

constexpr size_t kPieceBytes = 128 << 10;

// Calls f(begin, count) for ranges of packed blocks of w, shared among the team.
template <class F>
void each_piece(Team t, const Matrix& w, F f) {
  t.each_range(w.blocks(), std::max<size_t>(1, kPieceBytes / w.block_bytes()),
               [&](Range blocks) { f(blocks.begin, blocks.size()); });
}

// The kernels that multiply weights of one type with few rows. Each row of `depth` inputs is rounded
// to `per_row` values of type Input; float rows are not rounded.
template <class Input>
struct VectorKernels {
  size_t depth, per_row;
  void (*round)(const float* x, size_t k, Input* y);
  void (*gemv)(const void* w, size_t blocks, size_t k, const Input* x, size_t ldx, float* y,
               size_t ldy, int rows);
};

// Calls f with the VectorKernels for the type of w.
template <class F>
void with_vectors(const Pass& p, const Matrix& w, F f) {
  const Kernels& k = *p.kernels;
  const size_t depth = w.depth();
  if (is_super(w.type()))
    return f(VectorKernels<SuperInput>{depth, depth / kQuantBlock, k.quantize_super,
                                       k.gemv_super[super_index(w.type())]});
  if (w.type() == WeightType::mxfp4 && p.contract != Contract::ggml)
    return f(VectorKernels<float>{depth, depth, nullptr, k.gemv_wide_mxfp4});
  if (is_quantized(w.type()))
    return f(VectorKernels<QuantBlock>{depth, depth / kQuantBlock, k.quantize,
                                       w.type() == WeightType::q8   ? k.gemv_q8
                                       : w.type() == WeightType::q4 ? k.gemv_q4
                                       : w.type() == WeightType::q5 ? k.gemv_q5
                                                                    : k.gemv_mxfp4});
  if (p.contract == Contract::bf16)
    return f(VectorKernels<uint32_t>{depth, depth / 2, k.round_pairs, k.gemv_pairs});
  f(VectorKernels<float>{depth, depth, nullptr, k.gemv[static_cast<int>(w.type())]});
}

// Computes y = W x for up to kGemvRows rows. Every thread rounds all inputs for itself, before its
// first piece, which takes less time than waiting for another thread.
inline void matrix_vectors(Team t, const Pass& p, const Matrix& w, Rows x, Rows y) {
  with_vectors(p, w, [&t, &p, &w, &x, &y]<class Input>(const VectorKernels<Input>& v) {
    const Input* from = nullptr;
    size_t stride = v.per_row;
    if constexpr (std::is_same_v<Input, float>) {
      from = x.data;
      stride = x.stride;
    }
    each_piece(t, w, [&t, &p, &w, &x, &y, &v, &from, &stride](size_t begin, size_t count) {
      if (from == nullptr) {
        Input* const inputs =
            reinterpret_cast<Input*>(p.scratch->local[static_cast<size_t>(t.rank)].data());
        for (size_t r = 0; r < x.count; ++r) v.round(x.row(r), v.depth, inputs + r * v.per_row);
        from = inputs;
      }
      v.gemv(w.block(begin), count, v.depth, from, stride, y.data + begin * kLanes, y.stride,
             static_cast<int>(x.count));
    });
  });
}

inline bool by_blas(const Pass& p, Rows x) {
  return p.contract == Contract::f32_blas && x.count > 1;
}

}  // namespace detail

STET_INL void linear(Team t, const Pass& p, const Matrix& w, Rows x, Rows y) {
  size_t row = 0;
  for (const Matrix& part : w.parts()) {
    linear(t, p, part, x, y.columns(row, part.rows()));
    row += part.rows();
  }
  if (row > 0) return;
  if (detail::by_blas(p, x)) {
    gemm_blas(t, p, w, x, y);
  } else if (x.count <= kGemvRows) {
    detail::matrix_vectors(t, p, w, x, y);
  } else {
    gemm(t, p, w, x, y);
  }
}

STET_INL void linear(Team t, const Pass& p, const Linear& layer, Rows x, Rows y) {
  linear(t, p, layer.weight, x, y);
  if (layer.bias.empty()) return;
  detail::each_row(t, y.count, [&](size_t r) {
    p.kernels->add(y.row(r), layer.bias.data(), layer.bias.size());
  });
}

STET_INL void rms_norm(Team t, const Pass& p, const Vector& weight, double eps, Rows x, Rows y) {
  detail::each_row(t, x.count, [&](size_t r) {
    p.kernels->rms_norm(x.row(r), weight.data(), static_cast<float>(eps), y.row(r), x.width);
  });
}

STET_INL void layer_norm(Team t, const Pass& p, const Vector& weight, const Vector& bias,
                         double eps, Rows x, Rows y) {
  detail::each_row(t, x.count, [&](size_t r) {
    p.kernels->layer_norm(x.row(r), weight.data(), bias.data(), static_cast<float>(eps), y.row(r),
                          x.width);
  });
}

STET_INL void norm(Team t, const Pass& p, const Norm& n, Rows x, Rows y) {
  if (n.bias.empty())
    rms_norm(t, p, n.weight, n.eps, x, y);
  else
    layer_norm(t, p, n.weight, n.bias, n.eps, x, y);
}

STET_INL void rms_norm_heads(Team t, const Pass& p, const Vector& weight, double eps, Rows x,
                             size_t head_dim) {
  const size_t heads = x.width / head_dim;
  detail::each_row(t, x.count * heads, [&](size_t i) {
    float* head = x.row(i / heads) + i % heads * head_dim;
    p.kernels->rms_norm(head, weight.data(), static_cast<float>(eps), head, head_dim);
  });
}

STET_INL void scale(Team t, const Pass& p, double factor, Rows y) {
  if (factor == 1) return;
  detail::each_row(t, y.count, [&](size_t r) {
    p.kernels->scale(y.row(r), static_cast<float>(factor), y.width);
  });
}

STET_INL void clamp(Team t, const Pass& p, double limit, Rows y) {
  if (limit == 0) return;
  detail::each_row(t, y.count, [&](size_t r) {
    p.kernels->clamp(y.row(r), static_cast<float>(limit), y.width);
  });
}

STET_INL void add(Team t, const Pass& p, Rows y, Rows x) {
  detail::each_row(t, x.count, [&](size_t r) { p.kernels->add(y.row(r), x.row(r), x.width); });
}

STET_INL void linear_gated(Team t, const Pass& p, size_t index, const Linear& layer, Gate gate,
                           Rows x, Rows gate_up, Rows y) {
  const Matrix& w = layer.weight;
  const bool hooked = p.hooks != nullptr && (p.hooks->wants(Point::mlp_pre, index) ||
                                             p.hooks->wants(Point::mlp_pre_linear, index));
  if (!hooked && !detail::by_blas(p, x) && x.count > kGemvRows && layer.bias.empty() &&
      w.parts().empty() && y.width % kLanes == 0)
    return gemm_gated(t, p, w, gate, x, y), point(t, p, Point::mlp_post, index, y);
  linear(t, p, layer, x, gate_up);
  point(t, p, Point::mlp_pre, index, gate_up.columns(0, y.width));
  point(t, p, Point::mlp_pre_linear, index, gate_up.columns(y.width, y.width));
  detail::each_part(t, y, [&](size_t r, size_t begin, size_t n) {
    const float* const gates = gate_up.row(r) + begin;
    gate_kernel(*p.kernels, gate)(gates, gates + y.width, y.row(r) + begin, n);
  });
  point(t, p, Point::mlp_post, index, y);
}

STET_INL void gelu_tanh(Team t, const Pass& p, Rows x, Rows y) {
  detail::each_part(t, y, [&](size_t r, size_t begin, size_t n) {
    p.kernels->gelu_tanh(x.row(r) + begin, y.row(r) + begin, n);
  });
}

STET_INL void gelu(Team t, const Pass& p, Rows x, Rows y) {
  detail::each_part(t, y, [&](size_t r, size_t begin, size_t n) {
    p.kernels->gelu(x.row(r) + begin, y.row(r) + begin, n);
  });
}

STET_INL void rope_tables(Team t, const Pass& p, std::span<const Frequencies> frequencies) {
  for (const Span& span : p.spans) {
    detail::each_row(t, span.count, [&](size_t i) {
      const size_t row = span.row + i;
      for (size_t f = 0; f < frequencies.size(); ++f) {
        const auto& [inverse, magnitude] = frequencies[f];
        float *const cos = p.scratch->cos[f].row(row), *const sin = p.scratch->sin[f].row(row);
        rope_angles(span.first + static_cast<int64_t>(i), inverse, cos, sin);
        if (magnitude == 1.0f) continue;
        p.kernels->scale(cos, magnitude, inverse.size());
        p.kernels->scale(sin, magnitude, inverse.size());
      }
    });
  }
}

STET_INL void rope(Team t, const Pass& p, int index, Rows x, size_t head_dim) {
  const Rows& cos = p.scratch->cos[static_cast<size_t>(index)];
  const size_t heads = x.width / head_dim, half = cos.width;
  const Rows& sin = p.scratch->sin[static_cast<size_t>(index)];
  detail::each_row(t, x.count * heads, [&](size_t i) {
    const size_t r = i / heads;
    p.kernels->rope(x.row(r) + i % heads * head_dim, cos.row(r), sin.row(r), half);
  });
}

STET_INL void divide(Team t, const Pass& p, double divisor, Rows y) {
  if (divisor == 1) return;
  detail::each_row(t, y.count, [&](size_t r) {
    p.kernels->divide(y.row(r), static_cast<float>(divisor), y.row(r), y.width);
  });
}

STET_INL void softcap(Team t, const Pass& p, double cap, Rows y) {
  if (cap == 0) return;
  detail::each_row(t, y.count, [&](size_t r) {
    p.kernels->divide(y.row(r), static_cast<float>(cap), y.row(r), y.width);
    p.kernels->tanh(y.row(r), y.row(r), y.width);
    p.kernels->scale(y.row(r), static_cast<float>(cap), y.width);
  });
}

STET_INL void point(Team t, const Pass& p, Point which, size_t index, Rows x) {
  if (p.hooks != nullptr && p.hooks->wants(which, index)) p.hooks->visit(t, which, index, x);
}

STET_INL void norm_point(Team t, const Pass& p, Point which, size_t index, const Norm& norm, Rows x,
                         Rows y) {
  if (p.hooks == nullptr) return;
  const Point scale = scale_of_norm(which);
  if (p.hooks->wants(scale, index)) {
    p.hooks->each_copy(scale, index, [&](size_t row, const Rows& to) {
      detail::each_row(t, to.count, [&](size_t i) {
        *to.row(i) = p.kernels->norm_scale(x.row(row + i), norm.eps, !norm.bias.empty(), x.width);
      });
    });
  }
  point(t, p, which, index, y);
}

namespace detail {

template <class F>
size_t widest_of(const ModelConfig& config, F of) {
  return static_cast<size_t>(config.widest(of));
}

}  // namespace detail

STET_INL Scratch make_scratch(const ModelConfig& config, size_t max_rows, int threads,
                              int64_t capacity) {
  using detail::widest_of;
  Scratch s;
  const size_t key_dim = widest_of(config, [](const LayerShape&l) { return l.key_dim; }),
               value_dim = widest_of(config, [](const LayerShape&l) { return l.value_dim; });
  const size_t widest = std::max(
      {static_cast<size_t>(config.hidden_size), static_cast<size_t>(config.recurrence.output()),
       widest_of(config,
                 [](const LayerShape& l) { return std::max(l.intermediate, l.output()); })});
  const size_t rows = detail::round_up(std::min(max_rows, size_t{kGemmRows}), kTileRows),
               depth = detail::round_up(widest, kQuantStrip);
  s.packed = Memory(rows * depth * sizeof(float));
  const size_t inputs =
      kGemvRows *
      // rounded inputs
      std::max(depth / kQuantBlock * sizeof(SuperInput) / sizeof(float), depth / 2);
  const auto state = static_cast<size_t>(config.recurrence.key_dim * config.recurrence.value_dim);
  for (int i = 0; i < threads; ++i) {
    s.local.emplace_back(
        std::max({gemm_local_floats(), attention_local_floats(key_dim, value_dim), inputs, state}) *
        sizeof(float));
  }
  const size_t blocks = static_cast<size_t>((capacity + kBlockPositions - 1) / kBlockPositions);
  const size_t partial = widest_of(config, [](const LayerShape& l) {
    return attention_partial_floats(static_cast<size_t>(l.heads), static_cast<size_t>(l.kv_heads),
                                    static_cast<size_t>(l.value_dim));
  });
  s.partial = Memory(blocks * partial * sizeof(float), false);
  for (const Rope& rope : config.ropes) {
    const size_t pairs = static_cast<size_t>(config.rotated(rope)) / 2,
                 stride = detail::round_up(pairs, kLanes);
    for (std::vector<Rows>* table : {&s.cos, &s.sin}) {
      s.tables.emplace_back(max_rows * stride * sizeof(float));
      table->push_back({s.tables.back().as<float>(), stride, pairs, max_rows});
    }
  }
  detail::make_expert_scratch(config, max_rows, &s);
  return s;
}

}  // namespace stet
