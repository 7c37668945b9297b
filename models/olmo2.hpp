// OLMo 2. Norms apply to the outputs of attention and MLP, not to their inputs. Queries and keys
// are normalized over all heads together. Source: "2 OLMo 2 Furious", arXiv 2501.00656, and
// transformers' modeling_olmo2.py.
#pragma once

#include "stet/model/decoder.hpp"

namespace stet {

namespace olmo2 {

class Olmo2 : public Decoder {
 public:
  Olmo2(ModelConfig config, WeightLoader& w);

 private:
  void layer(const LayerPass& at) const override;

  struct Layer : LinearLayers {
    Norm post_attention_norm, post_mlp_norm;  // [hidden]
    Norm q_norm;                              // [heads head_dim]
    Norm k_norm;                              // [kv_heads head_dim]
  };
  std::vector<Layer> layers_;
};

// Reads all settings except those of rotary positions.
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
    const auto norm = [&](const char* name, int64_t n) { return load_rms_norm(w, at + name, n); };
    layers_.push_back({LinearLayers(w, c, at, {.qkv = c.attention_bias, .o = c.attention_bias}),
                       norm("post_attention_layernorm", c.hidden_size),
                       norm("post_feedforward_layernorm", c.hidden_size),
                       norm("self_attn.q_norm", c.heads * c.head_dim),
                       norm("self_attn.k_norm", c.kv_heads * c.head_dim)});
  });
}

inline void Olmo2::layer(const LayerPass& at) const {
  const Layer& l = layers_[at.index];
  const Pass& p = at.p;
  const Qkv x = attention_input(at, l.qkv);
  norm(at, l.q_norm, x.q, x.q);
  norm(at, l.k_norm, x.k, x.k);
  rotate(at, x);
  attend(at, x);
  attention_output(at, l.o);
  norm(at, l.post_attention_norm, p.out, p.out);
  add_attention(at);

  gated_mlp(at, l.gate_up, l.down, Gate::silu, p.x);
  norm(at, l.post_mlp_norm, p.out, p.out);
  add_mlp(at);
}

}  // namespace olmo2

inline Family olmo2_family() {
  return {{"Olmo2ForCausalLM"},  {"olmo2"},  olmo2::read_config,
          "embed_tokens.weight", {"model."}, load_model<olmo2::Olmo2>};
}

}  // namespace stet
