// The building blocks of a decoder's layers. Each runs the hooks of the TransformerLens points
// inside it, so that a family's file contains only the layer itself.
#pragma once

#include <algorithm>
#include <cstring>

#include "stet/model/attention_capture.hpp"
#include "stet/model/attention_changes.hpp"
#include "stet/model/ops.hpp"

namespace stet {

// Layer `index` of a pass: the context that every step receives.
struct LayerPass {
  Team t;
  const Pass& p;
  const ModelConfig& config;
  size_t index;
  LayerShape shape;
};

// Queries, keys and values: columns of one linear layer's output.
struct Qkv {
  Qkv(const LayerShape& shape, Rows qkv);

  Rows q, k, v;  // q [heads key_dim]; k [kv_heads key_dim]; v [kv_heads value_dim]
};

// Computes y = norm(x). With a point (ln1 or ln2 of the layer), also runs its hooks.
void norm(const LayerPass& at, const Norm& n, Rows x, Rows y);
void norm(const LayerPass& at, Point point, const Norm& n, Rows x, Rows y);
// Normalizes each head of x separately, [heads][head_dim].
void norm_heads(const LayerPass& at, const Norm& n, Rows x);

// Computes queries, keys and values of the residual stream: p.qkv = qkv(norm(p.x)). Leaves
// norm(p.x) in p.normed. Without a norm, p.qkv = qkv(p.x).
Qkv attention_input(const LayerPass& at, const Norm& n, const Linear& qkv);
Qkv attention_input(const LayerPass& at, const Linear& qkv);
// Applies RoPE to queries and keys if the layer uses it.
void rotate(const LayerPass& at, const Qkv& x);
// Stores keys and values in the KV cache, then sets p.attention to the attention of the queries
// over the whole cache. `sinks` is as in AttentionShape; empty: none. With a gate [heads
// value_dim], the attention is then multiplied by its sigmoid.
void attend(const LayerPass& at, const Qkv& x, const Vector& sinks = {},
            const Rows* gate = nullptr);
// Computes p.out = o(p.attention).
void attention_output(const LayerPass& at, const Linear& o);
// Adds the attention output in p.out to the residual stream.
void add_attention(const LayerPass& at);

// Computes p.out = down(f(gate) up), where gate and up are the halves of gate_up(x).
void gated_mlp(const LayerPass& at, const Linear& gate_up, const Linear& down, Gate f, Rows x);
// Computes p.out = down(f(up(x))).
void plain_mlp(const LayerPass& at, const Linear& up, const Linear& down,
               void (*f)(Team t, const Pass& p, Rows x, Rows y), Rows x);
// Adds the MLP output in p.out to the residual stream.
void add_mlp(const LayerPass& at);
// The two steps of add_mlp(), for layers that change the stream in between.
void add_mlp_output(const LayerPass& at);
void leave_layer(const LayerPass& at);

inline Qkv::Qkv(const LayerShape& s, Rows qkv) {
  const auto queries = static_cast<size_t>(s.queries()), keys = static_cast<size_t>(s.keys()),
             values = static_cast<size_t>(s.values());
  q = qkv.columns(0, queries);
  k = qkv.columns(queries, keys);
  v = qkv.columns(queries + keys, values);
}

inline void norm(const LayerPass& at, const Norm& n, Rows x, Rows y) { norm(at.t, at.p, n, x, y); }

inline void norm(const LayerPass& at, Point point, const Norm& n, Rows x, Rows y) {
  norm(at, n, x, y);
  norm_point(at.t, at.p, point, at.index, n, x, y);
}

inline void norm_heads(const LayerPass& at, const Norm& n, Rows x) {
  rms_norm_heads(at.t, at.p, n.weight, n.eps, x, static_cast<size_t>(at.shape.key_dim));
}

namespace detail {

// Recomputes the queries, keys or values of each head whose input was changed by a hook. The input
// in q_input, k_input or v_input then differs from the residual stream. Interventions on ln1 apply
// to these inputs, too. Uses p.out as scratch.
inline void recompute_changed_heads(const LayerPass& at, Point point, const Norm* n,
                                    const Linear& qkv, Rows inputs, size_t begin, Rows to) {
  const Team t = at.t;
  const Pass& p = at.p;
  const LayerShape& shape = at.shape;
  const auto dim = static_cast<size_t>(point == Point::v_input ? shape.value_dim : shape.key_dim);
  const size_t width = p.x.width, count = inputs.count;
  const Rows alone = p.out.rows(begin, count), products = p.hooks->head_products().rows(0, count);
  // `first` is the column of the product where the columns of `to` begin.
  const bool of_keys = point == Point::v_input && shape.values_are_keys;
  const auto first =
      of_keys ? static_cast<size_t>(shape.queries()) : static_cast<size_t>(to.data - p.qkv.data);
  for (size_t h = 0; h < inputs.width / width; ++h) {
    if (!p.hooks->may_change(point, at.index, static_cast<int64_t>(h))) continue;
    each_row(t, count, [&](size_t r) {
      std::memcpy(alone.row(r), inputs.row(r) + h * width, width * sizeof(float));
    });
    if (n != nullptr) {
      norm(t, p, *n, alone, alone);
      p.hooks->visit_changes(t, Point::ln1, at.index, alone, begin);
    }
    linear(t, p, qkv, alone, products);
    each_row(t, count, [&](size_t r) {
      const float* const own = inputs.row(r) + h * width;
      if (std::memcmp(own, p.x.row(begin + r), width * sizeof(float)) != 0)
        std::memcpy(to.row(begin + r) + h * dim, products.row(r) + first + h * dim,
                    dim * sizeof(float));
    });
  }
}

inline size_t inputs_of(const LayerPass& at, Point point) {
  return static_cast<size_t>(point_heads(at.config, {point, static_cast<int64_t>(at.index)}));
}

inline void head_input_point(const LayerPass& at, Point point, const Norm* n, const Linear& qkv,
                             Rows to) {
  const Team t = at.t;
  const Pass& p = at.p;
  if (!p.hooks->wants(point, at.index)) return;
  const size_t width = p.x.width, heads = inputs_of(at, point);
  for (size_t begin = 0; begin < p.x.count; begin += Hooks::kHeadInputRows) {
    const size_t count = std::min(Hooks::kHeadInputRows, p.x.count - begin);
    const Rows inputs = p.hooks->head_inputs().columns(0, heads * width).rows(0, count);
    each_row(t, count, [&](size_t r) {
      for (size_t h = 0; h < heads; ++h)
        std::memcpy(inputs.row(r) + h * width, p.x.row(begin + r), width * sizeof(float));
    });
    p.hooks->visit(t, point, at.index, inputs, begin);
    if (p.hooks->may_change(point, at.index))
      recompute_changed_heads(at, point, n, qkv, inputs, begin, to);
  }
}

inline Qkv attention_input(const LayerPass& at, const Norm* n, const Linear& qkv) {
  const auto& [t, p, c, index, shape] = at;
  if (n != nullptr) norm(at, Point::ln1, *n, p.x, p.normed);
  linear(t, p, qkv, n != nullptr ? p.normed : p.x, p.qkv);
  const Qkv x(shape, p.qkv);
  if (shape.values_are_keys)
    each_row(t, x.v.count,
             [&](size_t r) { std::memcpy(x.v.row(r), x.k.row(r), x.v.width * sizeof(float)); });
  if (p.hooks != nullptr) {
    head_input_point(at, Point::q_input, n, qkv, x.q);
    head_input_point(at, Point::k_input, n, qkv, x.k);
    head_input_point(at, Point::v_input, n, qkv, x.v);
    point(t, p, Point::q, index, x.q);
    point(t, p, Point::k, index, x.k);
    point(t, p, Point::v, index, x.v);
  }
  return x;
}

}  // namespace detail

inline Qkv attention_input(const LayerPass& at, const Norm& n, const Linear& qkv) {
  return detail::attention_input(at, &n, qkv);
}

inline Qkv attention_input(const LayerPass& at, const Linear& qkv) {
  return detail::attention_input(at, nullptr, qkv);
}

inline void rotate(const LayerPass& at, const Qkv& x) {
  const auto& [t, p, c, index, shape] = at;
  if (shape.rope >= 0) {
    rope(t, p, shape.rope, x.q, static_cast<size_t>(shape.key_dim));
    rope(t, p, shape.rope, x.k, static_cast<size_t>(shape.key_dim));
  }
  point(t, p, Point::rot_q, index, x.q);
  point(t, p, Point::rot_k, index, x.k);
}

inline void attend(const LayerPass& at, const Qkv& x, const Vector& sinks, const Rows* gate) {
  const auto& [t, p, c, index, shape] = at;
  const AttentionShape attended = {static_cast<int64_t>(index),
                                   static_cast<size_t>(shape.heads),
                                   static_cast<size_t>(shape.kv_heads),
                                   static_cast<size_t>(shape.key_dim),
                                   static_cast<size_t>(shape.value_dim),
                                   shape.window,
                                   c.attention_scale,
                                   c.attention_softcap,
                                   sinks.empty() ? nullptr : sinks.data()};
  if (shape.own) store_kv(t, p, attended.layer, x.k, x.v);
  attention(t, p, attended, x.q, p.attention);
  if (p.hooks != nullptr) {
    change_attention(t, p, attended, x.q, p.attention);
    capture_attention(t, p, attended, x.q);
  }
  if (gate != nullptr)
    detail::each_part(at.t, at.p.attention, [&](size_t r, size_t begin, size_t n) {
      float* const y = at.p.attention.row(r) + begin;
      at.p.kernels->sigmoid_mul(gate->row(r) + begin, y, y, n);
    });
  point(t, p, Point::z, index, p.attention);
}

inline void attention_output(const LayerPass& at, const Linear& o) {
  result_point(at.t, at.p, at.config, at.index, o.weight);
  linear(at.t, at.p, o, at.p.attention, at.p.out);
}

inline void add_attention(const LayerPass& at) {
  const auto& [t, p, c, index, shape] = at;
  point(t, p, Point::attn_out, index, p.out);
  add(t, p, p.x, p.out);
  point(t, p, Point::resid_mid, index, p.x);
}

inline void gated_mlp(const LayerPass& at, const Linear& gate_up, const Linear& down, Gate f,
                      Rows x) {
  const Pass& p = at.p;
  linear_gated(at.t, p, at.index, gate_up, f, x, p.gate_up, p.mlp);
  linear(at.t, p, down, p.mlp, p.out);
}

inline void plain_mlp(const LayerPass& at, const Linear& up, const Linear& down,
                      void (*f)(Team t, const Pass& p, Rows x, Rows y), Rows x) {
  const auto& [t, p, c, index, shape] = at;
  linear(t, p, up, x, p.mlp);
  point(t, p, Point::mlp_pre, index, p.mlp);
  f(t, p, p.mlp, p.mlp);
  point(t, p, Point::mlp_post, index, p.mlp);
  linear(t, p, down, p.mlp, p.out);
}

inline void add_mlp(const LayerPass& at) {
  const Pass& p = at.p;
  point(at.t, p, Point::mlp_out, at.index, p.out);
  detail::each_row(at.t, p.out.count, [&](size_t r) {
    p.kernels->add(p.x.row(r), p.out.row(r), p.out.width);
    if (r == 0 && p.after_layer != nullptr) (*p.after_layer)();
  });
  point(at.t, p, Point::resid_post, at.index, p.x);
}

inline void add_mlp_output(const LayerPass& at) {
  point(at.t, at.p, Point::mlp_out, at.index, at.p.out);
  add(at.t, at.p, at.p.x, at.p.out);
}

inline void leave_layer(const LayerPass& at) {
  const Pass& p = at.p;
  if (p.after_layer != nullptr) at.t.each(1, [&](size_t) { (*p.after_layer)(); });
  point(at.t, p, Point::resid_post, at.index, p.x);
}

}  // namespace stet
