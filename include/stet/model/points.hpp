// Points of the forward pass where activations can be captured and changed, under TransformerLens's
// names. docs/lab.md lists the points of each family.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stet/model/config.hpp"

namespace stet {

// The points of the forward pass. point_width() returns the numbers in a row.
enum class Point : uint8_t {
  embed,      // the initial residual stream, scaled if the family scales it
  pos_embed,  // GPT-2: the position embeddings added to it
  resid_pre,  // the residual stream before a layer
  q_input,    // [heads][hidden]: input of each head's queries, initially resid_pre
  k_input,    // [kv_heads][hidden]: input of each head's keys
  v_input,    // [kv_heads][hidden]: input of each head's values
  ln1_scale,  // the divisor of the norm before attention, one number; read-only
  ln1,        // attention's input: the norm's output, with its weight
  q,          // [heads][head_dim], before head norms and rotation
  k,          // [kv_heads][head_dim]
  v,          // [kv_heads][head_dim]
  rot_q,      // the queries that attention uses
  rot_k,      // the keys that the KV cache stores
  scores,     // [heads][positions]: scaled and capped, -inf where unseen; changed only by
              // interventions
  pattern,    // [heads][positions]: softmax of the scores; changed only by interventions
  z,          // [heads][head_dim], before the output matrix
  result,     // [heads][hidden]: each head's z times the output matrix; read-only
  conv,       // recurrent layers: [channels], the convolution's output, after SiLU if it has one
  beta,       // [heads]: multiplies what a token writes to the state; Mamba-2's time step
  decay,      // [heads]: multiplies the state before a token's update
  state,      // [heads][...]: the state after a token's update, which its output reads; in the
              // shape of PublishedArray; captured at chosen positions only; changed only by
              // interventions
  attn_out,   // attention's output, added to the residual stream
  resid_mid,  // the residual stream between attention and MLP; sequential layers only
  ln2_scale,  // as ln1_scale
  ln2,        // the MLP's input
  router_logits,   // [experts]: the router's output
  expert_weights,  // [experts]: factors of the experts' outputs; experts with 0 are not computed
  expert_indices,  // [experts per token]: the chosen experts, best first; read-only
  expert_in,       // the experts' input where it is not the MLP's (Gemma 4)
  expert_post,     // [experts per token][width]: inputs of their down projections, 0 for an expert
                   // that is not computed; read-only
  mlp_pre,         // input of the activation function
  mlp_pre_linear,  // factor of its result; not in GPT-2 and GPT-NeoX
  mlp_post,        // input of the MLP's output matrix
  mlp_out,         // the MLP's output, added to the residual stream
  resid_post,      // the residual stream after a layer
  ln_final_scale,  // as ln1_scale
  ln_final,        // the head's input
};
constexpr int kPoints = 37;

// Properties of a point.
struct PointInfo {
  const char* name;  // after "blocks.N." if the point belongs to a layer
  bool of_layer;
  bool changes;  // callbacks can change it
};

inline const PointInfo& point_info(Point p) {
  static constexpr PointInfo kAll[kPoints] = {{"hook_embed", false, true},
                                              {"hook_pos_embed", false, true},
                                              {"hook_resid_pre", true, true},
                                              {"hook_q_input", true, true},
                                              {"hook_k_input", true, true},
                                              {"hook_v_input", true, true},
                                              {"ln1.hook_scale", true, false},
                                              {"ln1.hook_normalized", true, true},
                                              {"attn.hook_q", true, true},
                                              {"attn.hook_k", true, true},
                                              {"attn.hook_v", true, true},
                                              {"attn.hook_rot_q", true, true},
                                              {"attn.hook_rot_k", true, true},
                                              {"attn.hook_attn_scores", true, false},
                                              {"attn.hook_pattern", true, false},
                                              {"attn.hook_z", true, true},
                                              {"attn.hook_result", true, false},
                                              {"hook_conv", true, true},
                                              {"hook_beta", true, true},
                                              {"hook_decay", true, true},
                                              {"hook_state", true, false},
                                              {"hook_attn_out", true, true},
                                              {"hook_resid_mid", true, true},
                                              {"ln2.hook_scale", true, false},
                                              {"ln2.hook_normalized", true, true},
                                              {"mlp.hook_router_logits", true, true},
                                              {"mlp.hook_expert_weights", true, true},
                                              {"mlp.hook_expert_indices", true, false},
                                              {"mlp.hook_expert_in", true, true},
                                              {"mlp.hook_expert_post", true, false},
                                              {"mlp.hook_pre", true, true},
                                              {"mlp.hook_pre_linear", true, true},
                                              {"mlp.hook_post", true, true},
                                              {"hook_mlp_out", true, true},
                                              {"hook_resid_post", true, true},
                                              {"ln_final.hook_scale", false, false},
                                              {"ln_final.hook_normalized", false, true}};
  return kAll[static_cast<int>(p)];
}

// Returns true for points [heads][positions]. Interventions can change them
// (Intervention::key_begin), callbacks cannot.
inline bool is_attention(Point p) { return p == Point::scores || p == Point::pattern; }

// Returns true for points that only recurrent layers have.
inline bool is_of_recurrence(Point p) {
  return p == Point::conv || p == Point::beta || p == Point::decay || p == Point::state;
}

// Returns true for the residual stream before the norm with one copy per head, each of which can be
// changed by itself.
inline bool is_head_input(Point p) {
  return p == Point::q_input || p == Point::k_input || p == Point::v_input;
}

inline bool is_norm_scale(Point p) {
  return p == Point::ln1_scale || p == Point::ln2_scale || p == Point::ln_final_scale;
}

inline Point scale_of_norm(Point norm) {
  return norm == Point::ln1   ? Point::ln1_scale
         : norm == Point::ln2 ? Point::ln2_scale
                              : Point::ln_final_scale;
}

// Returns true for points that only layers with experts have.
inline bool is_of_router(Point p) {
  return p == Point::router_logits || p == Point::expert_weights || p == Point::expert_indices ||
         p == Point::expert_in || p == Point::expert_post;
}

// Returns true for points inside an MLP. In a layer with experts, they are those of the shared expert
// or, in Gemma 4, of the MLP beside the experts.
inline bool is_within_mlp(Point p) {
  return p == Point::mlp_pre || p == Point::mlp_pre_linear || p == Point::mlp_post;
}

// Returns true if layers with experts have an MLP that every row passes through.
inline bool has_mlp_beside_experts(const ModelConfig& c) {
  return c.family == "gemma4" || c.experts.shared > 0;
}

// Returns true if only layers with their own keys and values have this point.
inline bool is_of_keys(Point p) {
  return p == Point::k_input || p == Point::v_input || p == Point::k || p == Point::v ||
         p == Point::rot_k;
}

// Returns true for points inside attention, which recurrent layers do not have.
inline bool is_within_attention(Point p) {
  return is_of_keys(p) || is_attention(p) || p == Point::q_input || p == Point::q ||
         p == Point::rot_q || p == Point::z || p == Point::result;
}

// Returns true if models of this family have the point.
inline bool has_point(const ModelConfig& c, Point p) {
  const bool gpt2 = c.family == "gpt2", neox = c.family == "gpt_neox";
  // OLMo 2 and 3 normalize the outputs of attention and MLP, not their inputs.
  if (p == Point::ln1 || p == Point::ln1_scale || p == Point::ln2 || p == Point::ln2_scale)
    return c.family != "olmo2" && c.family != "olmo3";
  if (p == Point::expert_in) return c.experts.count > 0 && c.family == "gemma4";
  if (is_of_router(p)) return c.experts.count > 0;
  if (is_within_attention(p) && !c.recurrent_of.empty() &&
      std::ranges::find(c.recurrent_of, 0) == c.recurrent_of.end())
    return false;
  if (p == Point::conv) return c.recurrence.kind != Recurrence::Kind::none;
  if (is_of_recurrence(p)) return c.recurrence.heads > 0;
  if (is_within_mlp(p) && c.experts.count > 0 && c.experts.dense.empty())
    return has_mlp_beside_experts(c);
  if (p == Point::pos_embed) return gpt2;
  if (p == Point::resid_mid) return !c.parallel_residual;
  if (p == Point::rot_q || p == Point::rot_k) return !gpt2;
  if (p == Point::mlp_pre_linear) return !gpt2 && !neox;
  return true;
}

// A point of one layer. `layer` is 0 for points outside the layers.
struct PointAt {
  Point point = Point::embed;
  int64_t layer = 0;
  bool operator==(const PointAt&) const = default;
};

// Returns true if the model has the point in this layer, which must be one of the model's.
inline bool has_point(const ModelConfig& c, const PointAt& at) {
  if (!has_point(c, at.point)) return false;
  if (is_within_attention(at.point) && c.layer(at.layer).recurrent) return false;
  if (is_of_recurrence(at.point)) return c.layer(at.layer).recurrent;
  if (is_of_keys(at.point)) return c.layer(at.layer).own;
  if (is_of_router(at.point)) return c.has_experts(at.layer);
  return !is_within_mlp(at.point) || !c.has_experts(at.layer) || has_mlp_beside_experts(c);
}

// Returns the number of heads, or of chosen experts, that the columns are divided into; 0: neither.
inline int64_t point_heads(const ModelConfig& c, const PointAt& at) {
  switch (at.point) {
    case Point::k_input:
    case Point::v_input:
    case Point::k:
    case Point::v:
    case Point::rot_k:
      return c.layer(at.layer).kv_heads;
    case Point::q_input:
    case Point::q:
    case Point::rot_q:
    case Point::z:
    case Point::result:
    case Point::scores:
    case Point::pattern:
      return c.heads;
    case Point::beta:
    case Point::decay:
    case Point::state:
      return c.recurrence.heads;
    case Point::expert_post:
      return c.experts.chosen;
    default:
      return 0;
  }
}

// Returns the columns of one position. For scores and patterns, `positions` is the number of key
// positions.
inline int64_t point_width(const ModelConfig& c, const PointAt& at, int64_t positions) {
  const Point p = at.point;
  const LayerShape layer = c.layer(at.layer);
  if (is_attention(p)) return layer.heads * positions;
  if (p == Point::result || is_head_input(p)) return point_heads(c, at) * c.hidden_size;
  if (is_norm_scale(p)) return 1;
  if (p == Point::expert_post) return c.experts.chosen * c.experts.width;
  if (p == Point::conv) return c.recurrence.channels;
  if (p == Point::beta || p == Point::decay) return c.recurrence.heads;
  if (p == Point::state) return c.recurrence.heads * c.recurrence.key_dim * c.recurrence.value_dim;
  if (const int64_t heads = point_heads(c, at))
    return heads * (p == Point::v || p == Point::z ? layer.value_dim : layer.key_dim);
  if (is_within_mlp(p)) return layer.intermediate;
  if (p == Point::expert_indices) return c.experts.chosen;
  if (p == Point::expert_in) return c.hidden_size;
  if (is_of_router(p)) return c.experts.count;
  return c.hidden_size;
}

inline std::string point_name(const PointAt& at) {
  const PointInfo& info = point_info(at.point);
  return (info.of_layer ? "blocks." + std::to_string(at.layer) + "." : "") + info.name;
}

// Returns all points of a model, layer after layer in the order of the pass.
inline std::vector<PointAt> points_of(const ModelConfig& c) {
  std::vector<PointAt> all;
  const auto add = [&](Point p, int64_t layer) {
    if (has_point(c, {p, layer})) all.push_back({p, layer});
  };
  for (const Point p : {Point::embed, Point::pos_embed}) add(p, 0);
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    for (int i = 0; i < kPoints; ++i) {
      if (point_info(static_cast<Point>(i)).of_layer) add(static_cast<Point>(i), layer);
    }
  }
  for (const Point p : {Point::ln_final_scale, Point::ln_final}) add(p, 0);
  return all;
}

// Returns the point with this name, which excludes the layer ("attn.hook_q").
inline std::optional<Point> parse_point(std::string_view name) {
  for (int i = 0; i < kPoints; ++i) {
    if (name == point_info(static_cast<Point>(i)).name) return static_cast<Point>(i);
  }
  return std::nullopt;
}

// Parses a name that point_name() returns.
inline std::optional<PointAt> parse_point_at(std::string_view name) {
  constexpr std::string_view kBlocks = "blocks.";
  if (!name.starts_with(kBlocks)) {
    const auto point = parse_point(name);
    return point && !point_info(*point).of_layer ? std::optional<PointAt>({*point, 0})
                                                 : std::nullopt;
  }
  const std::string_view rest = name.substr(kBlocks.size());
  int64_t layer = -1;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
  const auto read = static_cast<size_t>(end - rest.data());
  if (error != std::errc() || layer < 0 || read == rest.size() || rest[read] != '.')
    return std::nullopt;
  const auto point = parse_point(rest.substr(read + 1));
  return point && point_info(*point).of_layer ? std::optional<PointAt>({*point, layer})
                                              : std::nullopt;
}

}  // namespace stet
