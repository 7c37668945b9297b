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

 private:
  void layer(const LayerPass& at) const override;

  struct Layer : LinearLayers {
    Norm input_norm, post_attention_norm, pre_mlp_norm, post_mlp_norm;  // [hidden]
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
      return load_rms_norm(w, at + name, config_.hidden_size, kGemmaNormOffset);
    };
    layers_.push_back({LinearLayers(w, config_, at), norm("input_layernorm"),
                       norm("post_attention_layernorm"), norm("pre_feedforward_layernorm"),
                       norm("post_feedforward_layernorm")});
  });
}

inline void Gemma2::layer(const LayerPass& at) const {
  const Layer& l = layers_[at.index];
  const Pass& p = at.p;
  const Qkv x = attention_input(at, l.input_norm, l.qkv);
  rotate(at, x);
  attend(at, x);
  attention_output(at, l.o);
  norm(at, l.post_attention_norm, p.out, p.out);
  add_attention(at);

  norm(at, Point::ln2, l.pre_mlp_norm, p.x, p.normed);
  gated_mlp(at, l.gate_up, l.down, Gate::gelu_tanh, p.normed);
  norm(at, l.post_mlp_norm, p.out, p.out);
  add_mlp(at);
}

}  // namespace gemma2

inline Family gemma2_family() {
  return {{"Gemma2ForCausalLM"}, {"gemma2"}, gemma2::read_config,
          "embed_tokens.weight", {"model."}, load_model<gemma2::Gemma2>};
}

}  // namespace stet
