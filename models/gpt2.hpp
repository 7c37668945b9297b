// GPT-2: 124M to 1.5B, and DistilGPT2. Source: "Language Models are Unsupervised Multitask
// Learners" (Radford et al., 2019), and transformers' modeling_gpt2.py.
#pragma once

#include "stet/model/decoder.hpp"

namespace stet {

namespace gpt2 {

class Gpt2 : public Decoder {
 public:
  Gpt2(ModelConfig config, WeightLoader& w);

 private:
  void layer(const LayerPass& at) const override;
  void embed_tokens(Team t, const Pass& p) const override;  // token and position embeddings

  struct Layer {
    Norm attention_norm;
    Linear qkv;  // [3 hidden][hidden]
    Linear o;    // [hidden][hidden]
    Norm mlp_norm;
    Linear up;    // [intermediate][hidden]
    Linear down;  // [hidden][intermediate]
  };

  Matrix positions_;  // [max_positions][hidden]
  std::vector<Layer> layers_;
};

inline ModelConfig read_config(const JsonReader& json) {
  ModelConfig c;
  c.family = "gpt2";
  c.vocab_size = json.integer("vocab_size", 1, kMaxSize);
  c.hidden_size = json.integer("n_embd", 2, kMaxSize);
  c.intermediate_size = json.integer_or("n_inner", 4 * c.hidden_size, 1, 4 * kMaxSize);
  c.layers = json.integer("n_layer", 1, 1024);
  c.heads = c.kv_heads = json.integer("n_head", 1, 1024);
  if (c.hidden_size % (2 * c.heads) != 0)
    json.fail("n_embd", "an even multiple of n_head " + std::to_string(c.heads));
  c.head_dim = c.hidden_size / c.heads;
  c.max_positions =
      json.integer_or("n_positions", json.integer_or("n_ctx", 1024, 1, kMaxSize), 1, kMaxSize);
  c.norm_eps = json.number_or("layer_norm_epsilon", 1e-5, 0, 1);
  c.attention_scale = json.boolean_or("scale_attn_weights", true)
                          ? inverse_square_root(static_cast<double>(c.head_dim))
                          : 1.0;
  c.attention_bias = c.mlp_bias = true;
  c.tied_head = json.boolean_or("tie_word_embeddings", true);
  require_uniform_layers(json);
  c.window.assign(static_cast<size_t>(c.layers), 0);
  c.eos_ids = read_ids(json, "eos_token_id", c.vocab_size);
  require_activation(json, "activation_function",
                     {"gelu_new", "gelu_pytorch_tanh"});  // two names of one function
  require_false(
      json, {"scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"});
  return c;
}

inline Gpt2::Gpt2(ModelConfig config, WeightLoader& w) : Decoder(std::move(config)) {
  const ModelConfig& c = config_;
  const int64_t hidden = c.hidden_size, inter = c.intermediate_size;
  const auto norm = [&](const std::string& name) { return load_layer_norm(w, name, hidden); };
  embedding_ = w.matrix("embeddings", {{"wte.weight", c.vocab_size}}, hidden);
  positions_ = w.table("embeddings", {"wpe.weight", c.max_positions}, hidden);
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string at = "h." + std::to_string(i) + ".";
    layers_.push_back({norm(at + "ln_1"),
                       w.transposed("attention", {at + "attn.c_attn", 3 * hidden}, hidden),
                       w.transposed("attention", {at + "attn.c_proj", hidden}, hidden),
                       norm(at + "ln_2"), w.transposed("mlp", {at + "mlp.c_fc", inter}, hidden),
                       w.transposed("mlp", {at + "mlp.c_proj", hidden}, inter)});
  }
  final_norm_ = norm("ln_f");
  if (!c.tied_head) head_ = w.head(c.vocab_size, hidden);
}

inline void Gpt2::embed_tokens(Team t, const Pass& p) const {
  Decoder::embed_tokens(t, p);
  embed_positions(t, p, positions_, p.out);
  point(t, p, Point::pos_embed, 0, p.out);
  add(t, p, p.x, p.out);
}

inline void Gpt2::layer(const LayerPass& at) const {
  const Layer& l = layers_[at.index];
  const Pass& p = at.p;
  const Qkv x = attention_input(at, l.attention_norm, l.qkv);
  attend(at, x);
  attention_output(at, l.o);
  add_attention(at);

  norm(at, Point::ln2, l.mlp_norm, p.x, p.normed);
  plain_mlp(at, l.up, l.down, gelu_tanh, p.normed);
  add_mlp(at);
}

}  // namespace gpt2

inline Family gpt2_family() {
  return {{"GPT2LMHeadModel"},   {"gpt2"}, gpt2::read_config, "wte.weight", {"transformer.", ""},
          load_model<gpt2::Gpt2>};
}

}  // namespace stet
