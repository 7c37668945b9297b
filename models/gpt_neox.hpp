// GPT-NeoX: Pythia, with its checkpoints by training step, and other models trained with that code.
// Source: "Pythia: A Suite for Analyzing Large Language Models Across Training and Scaling", arXiv
// 2304.01373; "GPT-NeoX-20B", arXiv 2204.06745; and transformers' modeling_gpt_neox.py.
#pragma once

#include "stet/model/decoder.hpp"

namespace stet {

namespace gpt_neox {

class GptNeoX : public Decoder {
 public:
  GptNeoX(ModelConfig config, WeightLoader& w);

 private:
  void layer(const LayerPass& at) const override;

  struct Layer {
    Norm attention_norm;
    Linear qkv;  // [3 hidden][hidden]
    Linear o;    // [hidden][hidden]
    Norm mlp_norm;
    Linear up;    // [intermediate][hidden]
    Linear down;  // [hidden][intermediate]
  };

  std::vector<Layer> layers_;
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

inline GptNeoX::GptNeoX(ModelConfig config, WeightLoader& w) : Decoder(std::move(config)) {
  const ModelConfig& c = config_;
  const int64_t hidden = c.hidden_size, inter = c.intermediate_size;
  const auto norm = [&](const std::string& name) { return load_layer_norm(w, name, hidden); };
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
}

inline void GptNeoX::layer(const LayerPass& at) const {
  const Layer& l = layers_[at.index];
  const Pass& p = at.p;
  const Qkv x = attention_input(at, l.attention_norm, l.qkv);
  rotate(at, x);
  attend(at, x);
  attention_output(at, l.o);
  if (!config_.parallel_residual) add_attention(at);

  norm(at, Point::ln2, l.mlp_norm, p.x, p.normed);
  if (config_.parallel_residual) add_attention(at);
  plain_mlp(at, l.up, l.down, gelu, p.normed);
  add_mlp(at);
}

}  // namespace gpt_neox

inline Family gpt_neox_family() {
  return {{"GPTNeoXForCausalLM"}, {"gpt_neox"},      gpt_neox::read_config,
          "embed_in.weight",      {"gpt_neox.", ""}, load_model<gpt_neox::GptNeoX>};
}

}  // namespace stet
