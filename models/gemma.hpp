// Gemma 1: 2B and 7B, CodeGemma. Source: "Gemma: Open Models Based on Gemini Research and
// Technology", arXiv 2403.08295, and transformers' modeling_gemma.py.
#pragma once

#include "stet/model/decoder.hpp"

namespace stet {

// Stored norm weights are offsets from 1.
constexpr float kGemmaNormOffset = 1;

inline ModelConfig read_gemma(const JsonReader& json, const char* family,
                              const Defaults& defaults) {
  ModelConfig c = read_common(json, family, defaults);
  require_false(json, {"attention_bias", "mlp_bias", "use_bidirectional_attention"});
  c.embedding_scale = static_cast<double>(square_root(static_cast<float>(c.hidden_size)));
  return c;
}

namespace gemma {

class Gemma : public Decoder {
 public:
  Gemma(ModelConfig config, WeightLoader& w);
  void forward(Team t, const Pass& p) const override;
  bool begins_anywhere() const override { return true; }

 private:
  struct Layer : LinearLayers {
    Vector input_norm, post_attention_norm;  // [hidden]
  };
  std::vector<Layer> layers_;
};

inline ModelConfig read_config(const JsonReader& json) {
  ModelConfig c =
      read_gemma(json, "gemma", {.head_dim = 256, .max_positions = 8192, .tied_head = true});
  c.ropes = {read_rope(json, "", 10000)};
  // The first configs say "gelu" in hidden_act and mean the tanh form: hidden_activation, where
  // given, is the one.
  if (!json.has("hidden_activation"))
    require_activation(json, "hidden_act", {"gelu_pytorch_tanh", "gelu"});
  require_activation(json, "hidden_activation", {"gelu_pytorch_tanh"});
  return c;
}

inline Gemma::Gemma(ModelConfig config, WeightLoader& w)
    : Decoder(std::move(config), w, kGemmaNormOffset) {
  each_layer([&](const std::string& at) {
    const auto norm = [&](const char* name) {
      return w.vector("norms", at + name + ".weight", config_.hidden_size, kGemmaNormOffset);
    };
    layers_.push_back(
        {LinearLayers(w, config_, at), norm("input_layernorm"), norm("post_attention_layernorm")});
  });
}

inline void Gemma::forward(Team t, const Pass& p) const {
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
    add_attention(t, p, i);

    rms_norm(t, p, l.post_attention_norm, eps, p.x, p.normed);
    norm_point(t, p, Point::ln2, i, eps, p.x, p.normed);
    linear_gated(t, p, i, l.gate_up, Gate::gelu_tanh, p.normed, p.gate_up, p.mlp);
    linear(t, p, l.down, p.mlp, p.out);
    add_mlp(t, p, i);
  }
  rms_norm(t, p, final_norm_, eps, p.x, p.out);
  norm_point(t, p, Point::ln_final, 0, eps, p.x, p.out);
}

}  // namespace gemma

inline Family gemma_family() {
  return {{"GemmaForCausalLM"},  {"gemma"},  gemma::read_config,
          "embed_tokens.weight", {"model."}, load_model<gemma::Gemma>};
}

}  // namespace stet
