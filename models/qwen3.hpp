// Qwen 3, dense: queries and keys of each head are normalized before rotation. Source: "Qwen3
// Technical Report", arXiv 2505.09388, and transformers' modeling_qwen3.py.
#pragma once

#include "models/qwen2.hpp"
#include "stet/model/decoder.hpp"

namespace stet {

namespace qwen3 {

class Qwen3 : public Decoder {
 public:
  Qwen3(ModelConfig config, WeightLoader& w);

 private:
  void layer(const LayerPass& at) const override;

  struct Layer : LinearLayers {
    Norm input_norm, post_attention_norm;  // [hidden]
    Norm q_norm, k_norm;                   // [head_dim]
  };
  std::vector<Layer> layers_;
};

inline ModelConfig read_config(const JsonReader& json) {
  return read_qwen(json, "qwen3", {.head_dim = 128});
}

inline Qwen3::Qwen3(ModelConfig config, WeightLoader& w) : Decoder(std::move(config), w, 0) {
  const ModelConfig& c = config_;
  each_layer([&](const std::string& at) {
    const auto norm = [&](const char* name, int64_t n) { return load_rms_norm(w, at + name, n); };
    layers_.push_back({LinearLayers(w, c, at, {.qkv = c.attention_bias, .o = c.attention_bias}),
                       norm("input_layernorm", c.hidden_size),
                       norm("post_attention_layernorm", c.hidden_size),
                       norm("self_attn.q_norm", c.head_dim), norm("self_attn.k_norm", c.head_dim)});
  });
}

inline void Qwen3::layer(const LayerPass& at) const {
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
  gated_mlp(at, l.gate_up, l.down, Gate::silu, p.normed);
  add_mlp(at);
}

}  // namespace qwen3

inline Family qwen3_family() {
  return {{"Qwen3ForCausalLM"},  {"qwen3"},  qwen3::read_config,
          "embed_tokens.weight", {"model."}, load_model<qwen3::Qwen3>};
}

}  // namespace stet
