// Gemma 1: 2B and 7B, CodeGemma. Source: "Gemma: Open Models Based on Gemini Research and
// Technology", arXiv 2403.08295, and transformers' modeling_gemma.py.
#pragma once

#include "stet/model/decoder.hpp"

namespace stet {

// The checkpoint stores norm weights minus 1.
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

 private:
  void layer(const LayerPass& at) const override;

  struct Layer : LinearLayers {
    Norm input_norm, post_attention_norm;  // [hidden]
  };
  std::vector<Layer> layers_;
};

inline ModelConfig read_config(const JsonReader& json) {
  ModelConfig c =
      read_gemma(json, "gemma", {.head_dim = 256, .max_positions = 8192, .tied_head = true});
  c.ropes = {read_rope(json, "", 10000)};
  // The first configs give "gelu" in hidden_act but mean its tanh form. hidden_activation overrides
  // it where present.
  if (!json.has("hidden_activation"))
    require_activation(json, "hidden_act", {"gelu_pytorch_tanh", "gelu"});
  require_activation(json, "hidden_activation", {"gelu_pytorch_tanh"});
  return c;
}

inline Gemma::Gemma(ModelConfig config, WeightLoader& w)
    : Decoder(std::move(config), w, kGemmaNormOffset) {
  each_layer([&](const std::string& at) {
    const auto norm = [&](const char* name) {
      return load_rms_norm(w, at + name, config_.hidden_size, kGemmaNormOffset);
    };
    layers_.push_back(
        {LinearLayers(w, config_, at), norm("input_layernorm"), norm("post_attention_layernorm")});
  });
}

inline void Gemma::layer(const LayerPass& at) const {
  const Layer& l = layers_[at.index];
  const Pass& p = at.p;
  const Qkv x = attention_input(at, l.input_norm, l.qkv);
  rotate(at, x);
  attend(at, x);
  attention_output(at, l.o);
  add_attention(at);

  norm(at, Point::ln2, l.post_attention_norm, p.x, p.normed);
  gated_mlp(at, l.gate_up, l.down, Gate::gelu_tanh, p.normed);
  add_mlp(at);
}

}  // namespace gemma

inline Family gemma_family() {
  return {{"GemmaForCausalLM"},  {"gemma"},  gemma::read_config,
          "embed_tokens.weight", {"model."}, load_model<gemma::Gemma>};
}

}  // namespace stet
