// OLMo 2: what attention and MLP give is normalised, not what they read; queries and keys are
// normalised over all heads together. Source: "2 OLMo 2 Furious", arXiv 2501.00656, and
// transformers' modeling_olmo2.py.
#pragma once

#include "stet/model/decoder.hpp"

namespace stet {

namespace olmo2 {

class Olmo2 : public Decoder {
 public:
  Olmo2(ModelConfig config, WeightLoader& w);
  void forward(Team t, const Pass& p) const override;
  bool begins_anywhere() const override { return true; }

 private:
  struct Layer : LinearLayers {
    Vector post_attention_norm, post_mlp_norm;  // [hidden]
    Vector q_norm;                              // [heads head_dim]
    Vector k_norm;                              // [kv_heads head_dim]
  };
  std::vector<Layer> layers_;
};

// All but the rotary positions.
inline ModelConfig read_layers(const JsonReader& json, const char* family) {
  ModelConfig c = read_common(json, family);
  c.norm_eps = json.number_or("rms_norm_eps", 1e-5, 0, 1);
  require_activation(json, "hidden_act", {"silu"});
  return c;
}

inline ModelConfig read_config(const JsonReader& json) {
  ModelConfig c = read_layers(json, "olmo2");
  c.ropes = {read_rope(json, "", 10000)};
  return c;
}

inline Olmo2::Olmo2(ModelConfig config, WeightLoader& w) : Decoder(std::move(config), w, 0) {
  const ModelConfig& c = config_;
  each_layer([&](const std::string& at) {
    const auto norm = [&](const char* name, int64_t n) {
      return w.vector("norms", at + name + ".weight", n);
    };
    layers_.push_back({LinearLayers(w, c, at, {.qkv = c.attention_bias, .o = c.attention_bias}),
                       norm("post_attention_layernorm", c.hidden_size),
                       norm("post_feedforward_layernorm", c.hidden_size),
                       norm("self_attn.q_norm", c.heads * c.head_dim),
                       norm("self_attn.k_norm", c.kv_heads * c.head_dim)});
  });
}

inline void Olmo2::forward(Team t, const Pass& p) const {
  const Qkv qkv(config_, p.qkv);
  const double eps = config_.norm_eps;
  rope_tables(t, p, frequencies_);
  if (p.first_layer == 0) {
    embed(t, p, embedding_, 1.0f, p.x);
    point(t, p, Point::embed, 0, p.x);
  }
  for (size_t i = p.first_layer; i < layers_.size(); ++i) {
    const Layer& l = layers_[i];
    point(t, p, Point::resid_pre, i, p.x);
    linear(t, p, l.qkv, p.x, p.qkv);
    point(t, p, i, qkv);
    rms_norm(t, p, l.q_norm, eps, qkv.q, qkv.q);
    rms_norm(t, p, l.k_norm, eps, qkv.k, qkv.k);
    rotate(t, p, config_, i, qkv);
    attend(t, p, config_, i, qkv, p.attention);
    result_point(t, p, config_, i, l.o.weight);
    linear(t, p, l.o, p.attention, p.out);
    rms_norm(t, p, l.post_attention_norm, eps, p.out, p.out);
    add_attention(t, p, i);

    linear_gated(t, p, i, l.gate_up, Gate::silu, p.x, p.gate_up, p.mlp);
    linear(t, p, l.down, p.mlp, p.out);
    rms_norm(t, p, l.post_mlp_norm, eps, p.out, p.out);
    add_mlp(t, p, i);
  }
  rms_norm(t, p, final_norm_, eps, p.x, p.out);
  norm_point(t, p, Point::ln_final, 0, eps, p.x, p.out);
}

}  // namespace olmo2

inline Family olmo2_family() {
  return {{"Olmo2ForCausalLM"},  {"olmo2"},  olmo2::read_config,
          "embed_tokens.weight", {"model."}, load_model<olmo2::Olmo2>};
}

}  // namespace stet
