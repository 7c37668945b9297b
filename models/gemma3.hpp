// Gemma 3, text: 270M to 27B, and the text part of the multimodal checkpoints.
// Source: "Gemma 3 Technical Report", arXiv 2503.19786, and transformers' modeling_gemma3.py.
#pragma once

#include "models/gemma.hpp"
#include "stet/model/decoder.hpp"

namespace stet {

namespace gemma3 {

class Gemma3 : public Decoder {
 public:
  Gemma3(ModelConfig config, WeightLoader& w);

 private:
  void layer(const LayerPass& at) const override;

  struct Layer : LinearLayers {
    Norm input_norm, post_attention_norm, pre_mlp_norm, post_mlp_norm;  // [hidden]
    Norm q_norm, k_norm;                                                // [head_dim]
  };
  std::vector<Layer> layers_;
};

// Defaults of transformers' Gemma3TextConfig for fields that multimodal configs omit.
constexpr Defaults kDefaults = {.vocab_size = 262208,
                                .hidden_size = 2304,
                                .intermediate_size = 9216,
                                .layers = 26,
                                .heads = 8,
                                .kv_heads = 4,
                                .head_dim = 256,
                                .max_positions = 131072,
                                .tied_head = true};

inline ModelConfig read_config(const JsonReader& top) {
  const std::optional<JsonReader> nested = top.object("text_config");
  const JsonReader& json = nested ? *nested : top;
  ModelConfig c = read_gemma(json, "gemma3", kDefaults);
  if (nested && top.has("eos_token_id")) c.eos_ids = read_ids(top, "eos_token_id", c.vocab_size);
  if (!json.has("tie_word_embeddings")) c.tied_head = top.boolean_or("tie_word_embeddings", true);
  c.attention_scale = inverse_square_root(json.number_or("query_pre_attn_scalar", 256, 1e-6, 1e6));
  c.attention_softcap = json.number_or("attn_logit_softcapping", 0, 0, 1e6);
  c.logit_softcap = json.number_or("final_logit_softcapping", 0, 0, 1e6);
  const int64_t window = json.integer_or("sliding_window", 4096, 1, int64_t{1} << 32);
  const int64_t pattern = json.integer_or(
      "sliding_window_pattern", json.integer_or("_sliding_window_pattern", 6, 1, 1024), 1, 1024);
  c.window =
      read_windows(json, c.layers, window, [&](int64_t i) { return (i + 1) % pattern != 0; });
  const auto ropes = json.object("rope_parameters");
  if (ropes && !ropes->keys().empty() && !ropes->has_object("full_attention") &&
      !ropes->has_object("sliding_attention"))
    json.fail("rope_parameters", "full_attention and sliding_attention in it");
  const char* const local = "rope_local_base_freq";
  c.ropes = {
      read_rope(json, "full_attention", 1e6, {.others = {local}}),
      read_rope(json, "sliding_attention", 10000, {.theta = {local}, .others = {"rope_theta"}})};
  for (size_t i = 0; i < c.window.size(); ++i) c.rope_of[i] = c.window[i] == 0 ? 0 : 1;
  require_activation(json, "hidden_activation", {"gelu_pytorch_tanh"});
  return c;
}

inline Gemma3::Gemma3(ModelConfig config, WeightLoader& w)
    : Decoder(std::move(config), w, kGemmaNormOffset) {
  const ModelConfig& c = config_;
  each_layer([&](const std::string& at) {
    const auto norm = [&](const char* name, int64_t n) {
      return load_rms_norm(w, at + name, n, kGemmaNormOffset);
    };
    layers_.push_back({LinearLayers(w, c, at), norm("input_layernorm", c.hidden_size),
                       norm("post_attention_layernorm", c.hidden_size),
                       norm("pre_feedforward_layernorm", c.hidden_size),
                       norm("post_feedforward_layernorm", c.hidden_size),
                       norm("self_attn.q_norm", c.head_dim), norm("self_attn.k_norm", c.head_dim)});
  });
}

inline void Gemma3::layer(const LayerPass& at) const {
  const Layer& l = layers_[at.index];
  const Pass& p = at.p;
  const Qkv x = attention_input(at, l.input_norm, l.qkv);
  norm_heads(at, l.q_norm, x.q);
  norm_heads(at, l.k_norm, x.k);
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

}  // namespace gemma3

inline Family gemma3_family() {
  return {{"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"},
          {"gemma3_text", "gemma3"},
          gemma3::read_config,
          "embed_tokens.weight",
          {"model.", "language_model.model.", "model.language_model."},
          load_model<gemma3::Gemma3>};
}

}  // namespace stet
