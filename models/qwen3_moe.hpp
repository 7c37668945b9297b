// Qwen 3, mixtures of experts (30B-A3B, 235B-A22B). The layers are those of Qwen 3, with experts in
// place of the MLP, except for layers that the config declares dense.
// Source: "Qwen3 Technical Report", arXiv 2505.09388, and transformers' modeling_qwen3_moe.py.
#pragma once

#include "stet/model/decoder.hpp"
#include "stet/model/experts.hpp"

namespace stet {

namespace qwen3_moe {

class Qwen3Moe : public Decoder {
 public:
  Qwen3Moe(ModelConfig config, WeightLoader& w);

 private:
  void layer(const LayerPass& at) const override;

  struct Layer : AttentionLayers {
    Norm input_norm, post_attention_norm;  // [hidden]
    Norm q_norm, k_norm;                   // [head_dim]
    ExpertRouter router;
    Experts experts;
    Linear gate_up, down;  // dense layers: [2 intermediate][hidden], [hidden][intermediate]
  };
  std::vector<Layer> layers_;
};

inline ModelConfig read_config(const JsonReader& json) {
  ModelConfig c = read_common(json, "qwen3_moe", {.kv_heads = 4, .max_positions = 32768});
  require_false(json, {"mlp_bias"});
  require_activation(json, "hidden_act", {"silu"});
  c.ropes = {read_rope(json, "", 10000)};
  if (json.boolean_or("use_sliding_window", false))
    c.window.assign(c.window.size(), read_sliding_window(json));
  if (json.integer_or("num_experts", 1, 0, static_cast<int64_t>(kMostExperts)) == 0) return c;
  c.experts = read_experts(json, {.width = "moe_intermediate_size", .count = 128, .chosen = 8});
  const std::vector<int64_t> plain = json.integers("mlp_only_layers", 0, kMaxLayers);
  const int64_t step = json.integer_or("decoder_sparse_step", 1, 1, kMaxLayers);
  for (int64_t i = 0; i < c.layers; ++i) {
    if ((i + 1) % step != 0 || std::ranges::find(plain, i) != plain.end())
      c.experts.dense.push_back(i);
  }
  return c;
}

inline Qwen3Moe::Qwen3Moe(ModelConfig config, WeightLoader& w) : Decoder(std::move(config), w, 0) {
  const ModelConfig& c = config_;
  each_layer([&](const std::string& at) {
    const auto norm = [&](const char* name, int64_t n) { return load_rms_norm(w, at + name, n); };
    layers_.push_back({AttentionLayers(w, c, at, {.qkv = c.attention_bias, .o = c.attention_bias}),
                       norm("input_layernorm", c.hidden_size),
                       norm("post_attention_layernorm", c.hidden_size),
                       norm("self_attn.q_norm", c.head_dim),
                       norm("self_attn.k_norm", c.head_dim),
                       {},
                       {},
                       {},
                       {}});
    Layer& l = layers_.back();
    if (!c.has_experts(static_cast<int64_t>(layers_.size()) - 1)) {
      MlpLayers mlp(w, c, at);
      l.gate_up = std::move(mlp.gate_up);
      l.down = std::move(mlp.down);
      return;
    }
    l.router.linear = w.exact("mlp", {at + "mlp.gate", c.experts.count}, c.hidden_size, false);
    l.experts = load_experts(w, c, at, {"mlp.experts", "gate_proj", "up_proj", "down_proj"});
  });
}

inline void Qwen3Moe::layer(const LayerPass& at) const {
  const Layer& l = layers_[at.index];
  const Pass& p = at.p;
  const Qkv x = attention_input(at, l.input_norm, l.qkv);
  norm_heads(at, l.q_norm, x.q);
  norm_heads(at, l.k_norm, x.k);
  rotate(at, x);
  attend(at, x);
  attention_output(at, l.o);
  add_attention(at);

  norm(at, Point::ln2, l.post_attention_norm, p.x, p.normed);
  if (l.experts.count > 0)
    experts(at, l.router, l.experts, Gate::silu, p.normed);
  else
    gated_mlp(at, l.gate_up, l.down, Gate::silu, p.normed);
  add_mlp(at);
}

}  // namespace qwen3_moe

inline Family qwen3_moe_family() {
  return {{"Qwen3MoeForCausalLM"}, {"qwen3_moe"}, qwen3_moe::read_config,
          "embed_tokens.weight",   {"model."},    load_model<qwen3_moe::Qwen3Moe>};
}

}  // namespace stet
