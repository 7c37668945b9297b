// gpt-oss (20b, 120b): experts with clamped gates and biases, windows on every other layer, and a
// sink in the softmax of each head.
// Source: "gpt-oss-120b & gpt-oss-20b Model Card", arXiv 2508.10925, and transformers'
// modeling_gpt_oss.py.
#pragma once

#include "stet/model/decoder.hpp"
#include "stet/model/experts.hpp"

namespace stet {

namespace gpt_oss {

class GptOss : public Decoder {
 public:
  GptOss(ModelConfig config, WeightLoader& w);

 private:
  void layer(const LayerPass& at) const override;

  struct Layer : AttentionLayers {
    Vector sinks;                          // [heads]
    Norm input_norm, post_attention_norm;  // [hidden]
    ExpertRouter router;
    Experts experts;
  };
  std::vector<Layer> layers_;
};

constexpr const char* kPublishedYarn =
    R"({"rope_type": "yarn", "factor": 32, "original_max_position_embeddings": 4096,
        "beta_fast": 32, "beta_slow": 1, "truncate": false})";

inline ModelConfig read_config(const JsonReader& json) {
  ModelConfig c =
      read_common(json, "gpt_oss", {.kv_heads = 8, .head_dim = 64, .max_positions = 131072});
  require_false(json, {"mlp_bias"});
  require_activation(json, "hidden_act", {"silu"});
  c.attention_bias = json.boolean_or("attention_bias", true);
  c.norm_eps = json.number_or("rms_norm_eps", 1e-5, 0, 1);
  c.ropes = {read_rope(json, "", 150000, {.otherwise = kPublishedYarn})};
  c.window = read_windows(json, c.layers, json.integer_or("sliding_window", 128, 1, kMaxPositions),
                          [](int64_t i) { return i % 2 == 0; });
  c.experts = read_experts(json, {.width = "intermediate_size",
                                  .rule = RouterRule::softmax_of_chosen,
                                  .count = 128,
                                  .chosen = 4});
  c.gate_limit = json.number_or("swiglu_limit", 7, 1e-3, 1e6);
  return c;
}

inline GptOss::GptOss(ModelConfig config, WeightLoader& w) : Decoder(std::move(config), w, 0) {
  const ModelConfig& c = config_;
  each_layer([&](const std::string& at) {
    const auto norm = [&](const char* name) { return load_rms_norm(w, at + name, c.hidden_size); };
    layers_.push_back({AttentionLayers(w, c, at, {.qkv = c.attention_bias, .o = c.attention_bias}),
                       w.vector("attention", at + "self_attn.sinks", c.heads),
                       norm("input_layernorm"),
                       norm("post_attention_layernorm"),
                       {},
                       {}});
    Layer& l = layers_.back();
    l.router.linear = w.exact("mlp", {at + "mlp.router", c.experts.count}, c.hidden_size, true);
    l.experts = load_experts(w, c, at, {"mlp.experts", "gate_proj", "up_proj", "down_proj"});
    const auto biases = [&](const char* name, int64_t n) {
      return w.expert_biases("mlp", at + "mlp.experts", c.experts.count, {name, n});
    };
    l.experts.gate_bias = biases("gate_proj", c.experts.width);
    l.experts.up_bias = biases("up_proj", c.experts.width);
    l.experts.down_bias = biases("down_proj", c.hidden_size);
  });
}

inline void GptOss::layer(const LayerPass& at) const {
  const Layer& l = layers_[at.index];
  const Pass& p = at.p;
  const Qkv x = attention_input(at, l.input_norm, l.qkv);
  rotate(at, x);
  attend(at, x, l.sinks);
  attention_output(at, l.o);
  add_attention(at);

  norm(at, Point::ln2, l.post_attention_norm, p.x, p.normed);
  const Gate gate = Gate::clamped(static_cast<float>(at.config.gate_limit));
  experts(at, l.router, l.experts, gate, p.normed);
  add_mlp(at);
}

}  // namespace gpt_oss

inline Family gpt_oss_family() {
  return {{"GptOssForCausalLM"}, {"gpt_oss"}, gpt_oss::read_config,
          "embed_tokens.weight", {"model."},  load_model<gpt_oss::GptOss>};
}

}  // namespace stet
