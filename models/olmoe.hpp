// OLMoE: experts in place of MLPs; queries and keys are normalised over all heads together.
// Source: "OLMoE: Open Mixture-of-Experts Language Models", arXiv 2409.02060, and transformers'
// modeling_olmoe.py.
#pragma once

#include "stet/model/decoder.hpp"
#include "stet/model/experts.hpp"

namespace stet {

namespace olmoe {

class Olmoe : public Decoder {
 public:
  Olmoe(ModelConfig config, WeightLoader& w);

 private:
  void layer(const LayerPass& at) const override;

  struct Layer : AttentionLayers {
    Norm input_norm, post_attention_norm;  // [hidden]
    Norm q_norm;                           // [heads head_dim]
    Norm k_norm;                           // [kv_heads head_dim]
    ExpertRouter router;
    Experts experts;
  };
  std::vector<Layer> layers_;
};

inline ModelConfig read_config(const JsonReader& json) {
  ModelConfig c = read_common(json, "olmoe", {.max_positions = 4096});
  c.norm_eps = json.number_or("rms_norm_eps", 1e-5, 0, 1);
  require_false(json, {"mlp_bias"});
  require_activation(json, "hidden_act", {"silu"});
  c.ropes = {read_rope(json, "", 10000)};
  c.qkv_clip = read_optional(json, "clip_qkv", 0, 1e-6, 1e6);
  c.experts = read_experts(json, {.width = "intermediate_size", .count = 64, .chosen = 8});
  return c;
}

inline Olmoe::Olmoe(ModelConfig config, WeightLoader& w) : Decoder(std::move(config), w, 0) {
  const ModelConfig& c = config_;
  each_layer([&](const std::string& at) {
    const auto norm = [&](const char* name, int64_t n) { return load_rms_norm(w, at + name, n); };
    layers_.push_back(
        {AttentionLayers(w, c, at, {.qkv = c.attention_bias, .o = c.attention_bias}),
         norm("input_layernorm", c.hidden_size),
         norm("post_attention_layernorm", c.hidden_size),
         norm("self_attn.q_norm", c.heads * c.head_dim),
         norm("self_attn.k_norm", c.kv_heads * c.head_dim),
         {w.exact("mlp", {at + "mlp.gate", c.experts.count}, c.hidden_size, false)},
         load_experts(w, c, at, {"mlp.experts", "gate_proj", "up_proj", "down_proj"})});
  });
}

inline void Olmoe::layer(const LayerPass& at) const {
  const Layer& l = layers_[at.index];
  const Pass& p = at.p;
  const Qkv x = attention_input(at, l.input_norm, l.qkv);
  norm(at, l.q_norm, x.q, x.q);
  norm(at, l.k_norm, x.k, x.k);
  for (const Rows& some : {x.q, x.k, x.v}) clamp(at.t, p, config_.qkv_clip, some);
  rotate(at, x);
  attend(at, x);
  attention_output(at, l.o);
  add_attention(at);

  norm(at, Point::ln2, l.post_attention_norm, p.x, p.normed);
  experts(at, l.router, l.experts, Gate::silu, p.normed);
  add_mlp(at);
}

}  // namespace olmoe

inline Family olmoe_family() {
  return {{"OlmoeForCausalLM"},  {"olmoe"},  olmoe::read_config,
          "embed_tokens.weight", {"model."}, load_model<olmoe::Olmoe>};
}

}  // namespace stet
