// Qwen 3, dense: every head's queries and keys are normalised before they are rotated.
// Source: "Qwen3 Technical Report", arXiv 2505.09388, and transformers' modeling_qwen3.py.
#pragma once

#include "models/qwen2.hpp"
#include "stet/model/decoder.hpp"

namespace stet {

namespace qwen3 {

class Qwen3 : public Decoder {
 public:
  Qwen3(ModelConfig config, WeightLoader& w);
  void forward(Team t, const Pass& p) const override;
  bool begins_anywhere() const override { return true; }

 private:
  struct Layer : LinearLayers {
    Vector input_norm, post_attention_norm;  // [hidden]
    Vector q_norm, k_norm;                   // [head_dim]
  };
  std::vector<Layer> layers_;
};

inline ModelConfig read_config(const JsonReader& json) {
  return read_qwen(json, "qwen3", {.head_dim = 128});
}

inline Qwen3::Qwen3(ModelConfig config, WeightLoader& w) : Decoder(std::move(config), w, 0) {
  const ModelConfig& c = config_;
  each_layer([&](const std::string& at) {
    const auto norm = [&](const char* name, int64_t n) {
      return w.vector("norms", at + name + ".weight", n);
    };
    layers_.push_back({LinearLayers(w, c, at, {.qkv = c.attention_bias, .o = c.attention_bias}),
                       norm("input_layernorm", c.hidden_size),
                       norm("post_attention_layernorm", c.hidden_size),
                       norm("self_attn.q_norm", c.head_dim), norm("self_attn.k_norm", c.head_dim)});
  });
}

inline void Qwen3::forward(Team t, const Pass& p) const {
  const Qkv qkv(config_, p.qkv);
  const double eps = config_.norm_eps;
  const size_t head_dim = static_cast<size_t>(config_.head_dim);
  rope_tables(t, p, frequencies_);
  if (p.first_layer == 0) {
    embed(t, p, embedding_, 1.0f, p.x);
    point(t, p, Point::embed, 0, p.x);
  }
  for (size_t i = p.first_layer; i < layers_.size(); ++i) {
    const Layer& l = layers_[i];
    point(t, p, Point::resid_pre, i, p.x);
    rms_norm(t, p, l.input_norm, eps, p.x, p.normed);
    norm_point(t, p, Point::ln1, i, eps, p.x, p.normed);
    linear(t, p, l.qkv, p.normed, p.qkv);
    point(t, p, i, qkv);
    rms_norm_heads(t, p, l.q_norm, eps, qkv.q, head_dim);
    rms_norm_heads(t, p, l.k_norm, eps, qkv.k, head_dim);
    rotate(t, p, config_, i, qkv);
    attend(t, p, config_, i, qkv, p.attention);
    result_point(t, p, config_, i, l.o.weight);
    linear(t, p, l.o, p.attention, p.out);
    add_attention(t, p, i);

    rms_norm(t, p, l.post_attention_norm, eps, p.x, p.normed);
    norm_point(t, p, Point::ln2, i, eps, p.x, p.normed);
    linear_gated(t, p, i, l.gate_up, Gate::silu, p.normed, p.gate_up, p.mlp);
    linear(t, p, l.down, p.mlp, p.out);
    add_mlp(t, p, i);
  }
  rms_norm(t, p, final_norm_, eps, p.x, p.out);
  norm_point(t, p, Point::ln_final, 0, eps, p.x, p.out);
}

}  // namespace qwen3

inline Family qwen3_family() {
  return {{"Qwen3ForCausalLM"},  {"qwen3"},  qwen3::read_config,
          "embed_tokens.weight", {"model."}, load_model<qwen3::Qwen3>};
}

}  // namespace stet
