// Granite 3, mixtures of experts (1B-A400M, 3B-A800M): Granite's layers with experts in place of
// MLPs. The router's softmax is over the chosen experts only. Source: "Granite 3.0 Language Models"
// (IBM, 2024), and transformers' modeling_granitemoe.py.
#pragma once

#include "models/granite.hpp"
#include "stet/model/decoder.hpp"
#include "stet/model/experts.hpp"

namespace stet {

namespace granite_moe {

class GraniteMoe : public Decoder {
 public:
  GraniteMoe(ModelConfig config, WeightLoader& w);

 private:
  void layer(const LayerPass& at) const override;

  struct Layer : AttentionLayers {
    Norm input_norm, post_attention_norm;  // [hidden]
    ExpertRouter router;
    Experts experts;
  };
  std::vector<Layer> layers_;
};

inline ModelConfig read_config(const JsonReader& json) {
  ModelConfig c = granite::read_config(json);
  c.family = "granitemoe";
  c.experts = read_experts(json, {.width = "intermediate_size",
                                  .rule = RouterRule::softmax_of_chosen,
                                  .count = 8,
                                  .chosen = 2});
  return c;
}

inline GraniteMoe::GraniteMoe(ModelConfig config, WeightLoader& w)
    : Decoder(std::move(config), w, 0) {
  const ModelConfig& c = config_;
  each_layer([&](const std::string& at) {
    const auto norm = [&](const char* name) { return load_rms_norm(w, at + name, c.hidden_size); };
    const std::string moe = at + "block_sparse_moe.";
    const Biases biases = {.qkv = c.attention_bias, .o = c.attention_bias};
    layers_.push_back(
        {AttentionLayers(w, c, at, biases),
         norm("input_layernorm"),
         norm("post_attention_layernorm"),
         {w.exact("mlp", {moe + "router.layer", c.experts.count}, c.hidden_size, false)},
         load_experts(w, c, moe, {"experts", "gate_proj", "up_proj", "down_proj"})});
  });
}

inline void GraniteMoe::layer(const LayerPass& at) const {
  const Layer& l = layers_[at.index];
  const Pass& p = at.p;
  const Qkv x = attention_input(at, l.input_norm, l.qkv);
  rotate(at, x);
  attend(at, x);
  attention_output(at, l.o);
  scale(at.t, p, config_.residual_scale, p.out);
  add_attention(at);

  norm(at, Point::ln2, l.post_attention_norm, p.x, p.normed);
  experts(at, l.router, l.experts, Gate::silu, p.normed);
  scale(at.t, p, config_.residual_scale, p.out);
  add_mlp(at);
}

}  // namespace granite_moe

inline Family granite_moe_family() {
  return {{"GraniteMoeForCausalLM"}, {"granitemoe"}, granite_moe::read_config,
          "embed_tokens.weight",     {"model."},     load_model<granite_moe::GraniteMoe>};
}

}  // namespace stet
