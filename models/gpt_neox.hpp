// GPT-NeoX: Pythia with its checkpoints by step, and what else was trained with that code.
// Source: "Pythia: A Suite for Analyzing Large Language Models Across Training and Scaling", arXiv
// 2304.01373; "GPT-NeoX-20B", arXiv 2204.06745; and transformers' modeling_gpt_neox.py.
#pragma once

#include "stet/model/decoder.hpp"

namespace stet {

namespace gpt_neox {

class GptNeoX : public Model {
 public:
  GptNeoX(ModelConfig config, WeightLoader& w);
  void forward(Team t, const Pass& p) const override;
  bool begins_anywhere() const override { return true; }
  FinalNorm final_norm() const override { return {&final_norm_.weight, &final_norm_.bias}; }

 private:
  struct Norm {
    Vector weight, bias;  // [hidden]
  };
  struct Layer {
    Norm attention_norm;
    Linear qkv;  // [3 hidden][hidden]
    Linear o;    // [hidden][hidden]
    Norm mlp_norm;
    Linear up;    // [intermediate][hidden]
    Linear down;  // [hidden][intermediate]
  };

  std::vector<Layer> layers_;
  Norm final_norm_;
  std::vector<Frequencies> frequencies_;
};

inline ModelConfig read_config(const JsonReader& json) {
  ModelConfig c = read_common(json, "gpt_neox");
  if (c.kv_heads != c.heads)
    json.fail("num_key_value_heads", "as many as num_attention_heads " + std::to_string(c.heads));
  if (c.head_dim * c.heads != c.hidden_size) json.fail("head_dim", "hidden_size / heads");
  c.norm_eps = json.number_or("layer_norm_eps", 1e-5, 0, 1);
  c.attention_bias = json.boolean_or("attention_bias", true);
  c.mlp_bias = true;
  c.parallel_residual = json.boolean_or("use_parallel_residual", true);
  read_rotary_part(json, json.number_or("rotary_pct", 0.25, 0, 1), &c);
  c.ropes = {read_rope(json, "", 10000,
                       {.theta = {"rope_theta", "rotary_emb_base"},
                        .others = {"partial_rotary_factor", "rotary_pct"}})};
  require_activation(json, "hidden_act", {"gelu"});
  return c;
}

inline GptNeoX::GptNeoX(ModelConfig config, WeightLoader& w) : Model(std::move(config)) {
  const ModelConfig& c = config_;
  const int64_t hidden = c.hidden_size, inter = c.intermediate_size;
  const auto norm = [&](const std::string& name) {
    return Norm{w.vector("norms", name + ".weight", hidden),
                w.vector("norms", name + ".bias", hidden)};
  };
  embedding_ = w.matrix("embeddings", {{"embed_in.weight", c.vocab_size}}, hidden);
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string at = "layers." + std::to_string(i) + ".", self = at + "attention.";
    layers_.push_back({norm(at + "input_layernorm"),
                       w.interleaved("attention", {self + "query_key_value", 3 * hidden}, hidden,
                                     c.heads, c.attention_bias),
                       w.linear("attention", {{self + "dense", hidden}}, hidden, c.attention_bias),
                       norm(at + "post_attention_layernorm"),
                       w.linear("mlp", {{at + "mlp.dense_h_to_4h", inter}}, hidden, true),
                       w.linear("mlp", {{at + "mlp.dense_4h_to_h", hidden}}, inter, true)});
  }
  final_norm_ = norm("final_layer_norm");
  if (!c.tied_head) head_ = w.head(c.vocab_size, hidden, "embed_out.weight");
  for (const Rope& rope : c.ropes)
    frequencies_.push_back({inverse_frequencies(rope, c.rotated()), rope_magnitude(rope)});
}

inline void GptNeoX::forward(Team t, const Pass& p) const {
  const Qkv qkv(config_, p.qkv);
  const double eps = config_.norm_eps;
  rope_tables(t, p, frequencies_);
  if (p.first_layer == 0) {
    embed(t, p, embedding_, 1.0f, p.x);
    point(t, p, Point::embed, 0, p.x);
  }
  for (size_t i = p.first_layer; i < layers_.size(); ++i) {
    const Layer& l = layers_[i];
    point(t, p, Point::resid_pre, i, p.x);
    layer_norm(t, p, l.attention_norm.weight, l.attention_norm.bias, eps, p.x, p.normed);
    norm_point(t, p, Point::ln1, i, eps, p.x, p.normed, true);
    linear(t, p, l.qkv, p.normed, p.qkv);
    point(t, p, i, qkv);
    rotate(t, p, config_, i, qkv);
    attend(t, p, config_, i, qkv, p.attention);
    result_point(t, p, config_, i, l.o.weight);
    linear(t, p, l.o, p.attention, p.out);
    if (!config_.parallel_residual) add_attention(t, p, i);

    layer_norm(t, p, l.mlp_norm.weight, l.mlp_norm.bias, eps, p.x, p.normed);
    norm_point(t, p, Point::ln2, i, eps, p.x, p.normed, true);
    if (config_.parallel_residual) add_attention(t, p, i);
    linear(t, p, l.up, p.normed, p.mlp);
    point(t, p, Point::mlp_pre, i, p.mlp);
    gelu(t, p, p.mlp, p.mlp);
    point(t, p, Point::mlp_post, i, p.mlp);
    linear(t, p, l.down, p.mlp, p.out);
    add_mlp(t, p, i);
  }
  layer_norm(t, p, final_norm_.weight, final_norm_.bias, eps, p.x, p.out);
  norm_point(t, p, Point::ln_final, 0, eps, p.x, p.out, true);
}

}  // namespace gpt_neox

inline Family gpt_neox_family() {
  return {{"GPTNeoXForCausalLM"}, {"gpt_neox"},      gpt_neox::read_config,
          "embed_in.weight",      {"gpt_neox.", ""}, load_model<gpt_neox::GptNeoX>};
}

}  // namespace stet
