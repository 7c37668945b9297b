// Where activations can be looked at and changed: points of the forward pass, by the names that
// TransformerLens gave them (docs/points.md says which exist for which family).
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stet/model/config.hpp"

namespace stet {

enum class Point : uint8_t {
  embed,           // the residual stream's first value, scaled where the family scales it
  pos_embed,       // GPT-2: what positions add to it
  resid_pre,       // the residual stream before a layer
  q_input,         // [heads][hidden]: what each head's queries are made of, resid_pre each
  k_input,         // [kv_heads][hidden]: likewise its keys
  v_input,         // likewise its values
  ln1_scale,       // what the norm before attention divides by, one number; to look at alone
  ln1,             // what attention reads: the norm's output, its weight included
  q,               // [heads][head_dim], before norms of heads and rotation
  k,               // [kv_heads][head_dim]
  v,               // likewise
  rot_q,           // as attention multiplies them
  rot_k,           // as the KV cache stores them
  scores,          // [heads][positions]: scaled and capped, -inf where unseen; interventions alone
                   // change them
  pattern,         // [heads][positions]: their softmax, as the runtime summed it; likewise
  z,               // [heads][head_dim], before the output matrix
  result,          // [heads][hidden]: each head's z times the output matrix; to look at alone
  attn_out,        // what attention adds to the residual stream
  resid_mid,       // the residual stream between attention and MLP, where they are in turn
  ln2_scale,       // as ln1_scale
  ln2,             // what the MLP reads
  router_logits,   // [experts]: what a router gives for each
  expert_weights,  // [experts]: what each expert's output is multiplied by; 0: it is not computed
  expert_indices,  // [experts chosen]: their numbers, best first; to look at alone
  mlp_pre,         // before the activation function
  mlp_pre_linear,  // what its result is multiplied with; not of GPT-2 and GPT-NeoX
  mlp_post,        // what the last matrix reads
  mlp_out,         // what the MLP adds to the residual stream
  resid_post,      // the residual stream after a layer
  ln_final_scale,  // as ln1_scale
  ln_final,        // what the head reads
};
constexpr int kPoints = 31;

struct PointInfo {
  const char* name;  // after "blocks.N." where it is of a layer
  bool of_layer;
  bool changes;  // can be changed, too
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
                                              {"hook_attn_out", true, true},
                                              {"hook_resid_mid", true, true},
                                              {"ln2.hook_scale", true, false},
                                              {"ln2.hook_normalized", true, true},
                                              {"mlp.hook_router_logits", true, true},
                                              {"mlp.hook_expert_weights", true, true},
                                              {"mlp.hook_expert_indices", true, false},
                                              {"mlp.hook_pre", true, true},
                                              {"mlp.hook_pre_linear", true, true},
                                              {"mlp.hook_post", true, true},
                                              {"hook_mlp_out", true, true},
                                              {"hook_resid_post", true, true},
                                              {"ln_final.hook_scale", false, false},
                                              {"ln_final.hook_normalized", false, true}};
  return kAll[static_cast<int>(p)];
}

// [heads][positions]: interventions change them (Intervention::key_begin), callbacks do not.
inline bool is_attention(Point p) { return p == Point::scores || p == Point::pattern; }

// The residual stream once for each head, before the norm: a head's copy is changed by itself.
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

// Whether it is a point of layers with experts.
inline bool is_of_router(Point p) {
  return p == Point::router_logits || p == Point::expert_weights || p == Point::expert_indices;
}

// Whether it is a point between the matrices of an MLP: of layers without experts.
inline bool is_within_mlp(Point p) {
  return p == Point::mlp_pre || p == Point::mlp_pre_linear || p == Point::mlp_post;
}

// Whether models of this kind have it.
inline bool has_point(const ModelConfig& c, Point p) {
  const bool gpt2 = c.family == "gpt2", neox = c.family == "gpt_neox";
  // OLMo 2 and 3 normalise what a layer adds, not what it reads.
  if (p == Point::ln1 || p == Point::ln1_scale || p == Point::ln2 || p == Point::ln2_scale)
    return c.family != "olmo2" && c.family != "olmo3";
  if (is_of_router(p)) return c.experts.count > 0;
  if (is_within_mlp(p) && c.experts.count > 0 && c.experts.dense.empty()) return false;
  if (p == Point::pos_embed) return gpt2;
  if (p == Point::resid_mid) return !c.parallel_residual;
  if (p == Point::rot_q || p == Point::rot_k) return !gpt2;
  if (p == Point::mlp_pre_linear) return !gpt2 && !neox;
  return true;
}

// A point of one layer; layer 0 for those that have none.
struct PointAt {
  Point point = Point::embed;
  int64_t layer = 0;
  bool operator==(const PointAt&) const = default;
};

// Whether a model has it in this layer, which must be one of the model's.
inline bool has_point(const ModelConfig& c, const PointAt& at) {
  if (!has_point(c, at.point)) return false;
  if (is_of_router(at.point)) return c.has_experts(at.layer);
  return !is_within_mlp(at.point) || !c.has_experts(at.layer);
}

// Heads that its columns are of; 0: none.
inline int64_t point_heads(const ModelConfig& c, Point p) {
  switch (p) {
    case Point::k_input:
    case Point::v_input:
    case Point::k:
    case Point::v:
    case Point::rot_k:
      return c.kv_heads;
    case Point::q_input:
    case Point::q:
    case Point::rot_q:
    case Point::z:
    case Point::result:
    case Point::scores:
    case Point::pattern:
      return c.heads;
    default:
      return 0;
  }
}

// Columns of one position; of scores and pattern, of `positions` that are there.
inline int64_t point_width(const ModelConfig& c, Point p, int64_t positions) {
  if (is_attention(p)) return c.heads * positions;
  if (p == Point::result || is_head_input(p)) return point_heads(c, p) * c.hidden_size;
  if (is_norm_scale(p)) return 1;
  if (const int64_t heads = point_heads(c, p)) return heads * c.head_dim;
  if (is_within_mlp(p)) return c.intermediate_size;
  if (p == Point::expert_indices) return c.experts.chosen;
  if (is_of_router(p)) return c.experts.count;
  return c.hidden_size;
}

inline std::string point_name(const PointAt& at) {
  const PointInfo& info = point_info(at.point);
  return (info.of_layer ? "blocks." + std::to_string(at.layer) + "." : "") + info.name;
}

// All points of a model, layer after layer in the order of the pass.
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

// The point of a name without its layer ("attn.hook_q").
inline std::optional<Point> parse_point(std::string_view name) {
  for (int i = 0; i < kPoints; ++i) {
    if (name == point_info(static_cast<Point>(i)).name) return static_cast<Point>(i);
  }
  return std::nullopt;
}

// The inverse of point_name().
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
