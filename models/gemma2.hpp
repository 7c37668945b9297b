// Gemma 2: 2B, 9B, 27B. Source: "Gemma 2: Improving Open Language Models at a Practical Size",
// arXiv 2408.00118, and transformers' modeling_gemma2.py.
#pragma once

#include "models/gemma.hpp"
#include "stet/model/decoder.hpp"

namespace stet {

namespace gemma2 {

class Gemma2 : public Decoder {
 public:
  Gemma2(ModelConfig config, WeightLoader& w);
  void forward(Team t, const Pass& p) const override;
  bool begins_anywhere() const override { return true; }

 private:
  struct Layer : LinearLayers {
    Vector input_norm, post_attention_norm, pre_mlp_norm, post_mlp_norm;  // [hidden]
  };
  std::vector<Layer> layers_;
};

inline ModelConfig read_config(const JsonReader& json) {
  ModelConfig c =
      read_gemma(json, "gemma2", {.head_dim = 256, .max_positions = 8192, .tied_head = true});
  c.ropes = {read_rope(json, "", 10000)};
  c.attention_scale = inverse_square_root(json.number_or("query_pre_attn_scalar", 256, 1e-6, 1e6));
  c.attention_softcap = read_optional(json, "attn_logit_softcapping", 50, 1e-6, 1e6);
  c.logit_softcap = read_optional(json, "final_logit_softcapping", 30, 1e-6, 1e6);
  const int64_t window = json.integer_or("sliding_window", 4096, 1, int64_t{1} << 32);
  c.window = read_windows(json, c.layers, window, [](int64_t i) { return i % 2 == 0; });
  require_activation(json, "hidden_activation", {"gelu_pytorch_tanh"});
  return c;
}

inline Gemma2::Gemma2(ModelConfig config, WeightLoader& w)
    : Decoder(std::move(config), w, kGemmaNormOffset) {
  each_layer([&](const std::string& at) {
    const auto norm = [&](const char* name) {
      return w.vector("norms", at + name + ".weight", config_.hidden_size, kGemmaNormOffset);
    };
    layers_.push_back({LinearLayers(w, config_, at), norm("input_layernorm"),
                       norm("post_attention_layernorm"), norm("pre_feedforward_layernorm"),
                       norm("post_feedforward_layernorm")});
  });
}

inline void Gemma2::forward(Team t, const Pass& p) const {
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
    rms_norm(t, p, l.post_attention_norm, eps, p.out, p.out);
    add_attention(t, p, i);

    rms_norm(t, p, l.pre_mlp_norm, eps, p.x, p.normed);
    norm_point(t, p, Point::ln2, i, eps, p.x, p.normed);
    linear_gated(t, p, i, l.gate_up, Gate::gelu_tanh, p.normed, p.gate_up, p.mlp);
    linear(t, p, l.down, p.mlp, p.out);
    rms_norm(t, p, l.post_mlp_norm, eps, p.out, p.out);
    add_mlp(t, p, i);
  }
  rms_norm(t, p, final_norm_, eps, p.x, p.out);
  norm_point(t, p, Point::ln_final, 0, eps, p.x, p.out);
}

}  // namespace gemma2

inline Family gemma2_family() {
  return {{"Gemma2ForCausalLM"}, {"gemma2"}, gemma2::read_config,
          "embed_tokens.weight", {"model."}, load_model<gemma2::Gemma2>};
}

}  // namespace stet
