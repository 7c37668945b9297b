// Mixtral 8x7B and 8x22B: Llama's layers with experts in place of MLPs.
// Source: "Mixtral of Experts", arXiv 2401.04088, and transformers' modeling_mixtral.py.
#pragma once

#include "stet/model/decoder.hpp"
#include "stet/model/experts.hpp"

namespace stet {

namespace mixtral {

class Mixtral : public Decoder {
 public:
  Mixtral(ModelConfig config, WeightLoader& w);

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
  ModelConfig c = read_common(json, "mixtral", {.kv_heads = 8, .max_positions = 131072});
  c.norm_eps = json.number_or("rms_norm_eps", 1e-5, 0, 1);
  require_false(json, {"attention_bias", "mlp_bias"});
  require_activation(json, "hidden_act", {"silu"});
  c.ropes = {read_rope(json, "", 1e6)};
  if (json.has("sliding_window")) c.window.assign(c.window.size(), read_sliding_window(json));
  c.experts = read_experts(
      json,
      {.width = "intermediate_size", .rule = RouterRule::softmax_divided, .count = 8, .chosen = 2});
  return c;
}

inline Mixtral::Mixtral(ModelConfig config, WeightLoader& w) : Decoder(std::move(config), w, 0) {
  const ModelConfig& c = config_;
  each_layer([&](const std::string& at) {
    const auto norm = [&](const char* name) { return load_rms_norm(w, at + name, c.hidden_size); };
    const std::string moe = at + "block_sparse_moe.";
    layers_.push_back({AttentionLayers(w, c, at),
                       norm("input_layernorm"),
                       norm("post_attention_layernorm"),
                       {w.exact("mlp", {moe + "gate", c.experts.count}, c.hidden_size, false)},
                       load_experts(w, c, moe, {"experts", "w1", "w3", "w2"})});
  });
}

inline void Mixtral::layer(const LayerPass& at) const {
  const Layer& l = layers_[at.index];
  const Pass& p = at.p;
  const Qkv x = attention_input(at, l.input_norm, l.qkv);
  rotate(at, x);
  attend(at, x);
  attention_output(at, l.o);
  add_attention(at);

  norm(at, Point::ln2, l.post_attention_norm, p.x, p.normed);
  experts(at, l.router, l.experts, Gate::silu, p.normed);
  add_mlp(at);
}

}  // namespace mixtral

inline Family mixtral_family() {
  return {{"MixtralForCausalLM"}, {"mixtral"}, mixtral::read_config,
          "embed_tokens.weight",  {"model."},  load_model<mixtral::Mixtral>};
}

}  // namespace stet
