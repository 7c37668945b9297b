// Llama 2, 3, 3.1, 3.2, 3.3, text.
// Source: arXiv 2302.13971, 2307.09288, 2407.21783, and transformers' modeling_llama.py.
#pragma once

#include "stet/model/decoder.hpp"

namespace stet {

class Llama : public Decoder {
 public:
  // See LinearLayers for `fused`.
  Llama(ModelConfig config, WeightLoader& w, Biases biases = {}, bool fused = false);

 private:
  void layer(const LayerPass& at) const override;

  struct Layer : LinearLayers {
    Norm input_norm, post_attention_norm;  // [hidden]
  };
  std::vector<Layer> layers_;
};

namespace llama {

inline ModelConfig read_config(const JsonReader& json) {
  ModelConfig c = read_common(json, "llama");
  c.ropes = {read_rope(json, "", 10000)};
  require_activation(json, "hidden_act", {"silu"});
  return c;
}

inline std::unique_ptr<Model> load(ModelConfig c, WeightLoader& w) {
  const Biases biases = {c.attention_bias, c.attention_bias, c.mlp_bias};
  return std::make_unique<Llama>(std::move(c), w, biases);
}

}  // namespace llama

inline Llama::Llama(ModelConfig config, WeightLoader& w, Biases biases, bool fused)
    : Decoder(std::move(config), w, 0) {
  each_layer([&](const std::string& at) {
    const auto norm = [&](const char* name) {
      return load_rms_norm(w, at + name, config_.hidden_size);
    };
    layers_.push_back({LinearLayers(w, config_, at, biases, fused), norm("input_layernorm"),
                       norm("post_attention_layernorm")});
  });
}

inline void Llama::layer(const LayerPass& at) const {
  const Layer& l = layers_[at.index];
  const Pass& p = at.p;
  const Qkv x = attention_input(at, l.input_norm, l.qkv);
  rotate(at, x);
  attend(at, x);
  attention_output(at, l.o);
  scale(at.t, p, config_.residual_scale, p.out);
  add_attention(at);

  norm(at, Point::ln2, l.post_attention_norm, p.x, p.normed);
  gated_mlp(at, l.gate_up, l.down, Gate::silu, p.normed);
  scale(at.t, p, config_.residual_scale, p.out);
  add_mlp(at);
}

inline Family llama_family() {
  return {{"LlamaForCausalLM"},
          {"llama"},
          llama::read_config,
          "embed_tokens.weight",
          {"model.", "language_model.model."},
          llama::load};
}

}  // namespace stet
