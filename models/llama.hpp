// Llama 2, 3, 3.1, 3.2, 3.3, text.
// Source: arXiv 2302.13971, 2307.09288, 2407.21783, and transformers' modeling_llama.py.
#pragma once

#include "stet/model/decoder.hpp"

namespace stet {

class Llama : public Decoder {
 public:
  // `fused`: as LinearLayers has it.
  Llama(ModelConfig config, WeightLoader& w, Biases biases = {}, bool fused = false);
  void forward(Team t, const Pass& p) const override;
  bool begins_anywhere() const override { return true; }

 private:
  struct Layer : LinearLayers {
    Vector input_norm, post_attention_norm;  // [hidden]
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
      return w.vector("norms", at + name + ".weight", config_.hidden_size);
    };
    layers_.push_back({LinearLayers(w, config_, at, biases, fused), norm("input_layernorm"),
                       norm("post_attention_layernorm")});
  });
}

inline void Llama::forward(Team t, const Pass& p) const {
  const Qkv qkv(config_, p.qkv);
  const double eps = config_.norm_eps;
  rope_tables(t, p, frequencies_);
  if (p.first_layer == 0) {
    embed(t, p, embedding_, static_cast<float>(config_.embedding_scale), p.x);
    point(t, p, Point::embed, 0, p.x);
  }
  for (size_t i = p.first_layer; i < layers_.size(); ++i) {
    const Layer& l = layers_[i];
    point(t, p, Point::resid_pre, i, p.x);
    rms_norm(t, p, l.input_norm, eps, p.x, p.normed);
    norm_point(t, p, Point::ln1, i, eps, p.x, p.normed);
    linear(t, p, l.qkv, p.normed, p.qkv);
    point(t, p, i, qkv);
    rotate(t, p, config_, i, qkv);
    attend(t, p, config_, i, qkv, p.attention);
    result_point(t, p, config_, i, l.o.weight);
    linear(t, p, l.o, p.attention, p.out);
    scale(t, p, config_.residual_scale, p.out);
    add_attention(t, p, i);

    rms_norm(t, p, l.post_attention_norm, eps, p.x, p.normed);
    norm_point(t, p, Point::ln2, i, eps, p.x, p.normed);
    linear_gated(t, p, i, l.gate_up, Gate::silu, p.normed, p.gate_up, p.mlp);
    linear(t, p, l.down, p.mlp, p.out);
    scale(t, p, config_.residual_scale, p.out);
    add_mlp(t, p, i);
  }
  rms_norm(t, p, final_norm_, eps, p.x, p.out);
  norm_point(t, p, Point::ln_final, 0, eps, p.x, p.out);
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
