// LFM2, LFM2.5 and LFM2-MoE: most layers are short convolutions whose inputs and outputs are gated,
// the others attention. Source: "LFM2 Technical Report", arXiv 2511.23404, and transformers'
// modeling_lfm2.py and modeling_lfm2_moe.py.
#pragma once

#include "models/layer_inputs.hpp"
#include "stet/model/decoder.hpp"
#include "stet/model/experts.hpp"
#include "stet/model/recurrence.hpp"

namespace stet {

namespace lfm2 {

// A short convolution: out(c * conv(b * u)), where b, c and u are the thirds of in(x).
struct ShortConv {
  Linear in;   // [3 hidden][hidden]
  Linear out;  // [hidden][hidden]
  Convolution conv;
  RecurrentOffsets arrays;
};

class Lfm2 : public Decoder {
 public:
  Lfm2(ModelConfig config, WeightLoader& w);

 private:
  // The family's own activations: the three parts of the input projection's result, and the product
  // that the output projection reads.
  enum { kThirds, kOutput };

  std::vector<int64_t> own_widths() const override {
    return {3 * config_.hidden_size, config_.hidden_size};
  }
  void layer(const LayerPass& at) const override;
  void attention(const LayerPass& at) const;
  void short_conv(const LayerPass& at) const;

  struct Layer {
    Norm operator_norm, mlp_norm;  // [hidden]
    ShortConv conv;                // recurrent layers only
    Linear qkv, o;                 // attention layers only
    Norm q_norm, k_norm;           // [head_dim]
    ExpertRouter router;
    Experts experts;
    Linear gate_up, down;  // dense layers only
  };
  Layer load_layer(WeightLoader& w, const std::string& at, int64_t index) const;

  std::vector<Layer> layers_;
};

// Returns the width of dense MLPs. LFM2's config may give a nominal width. The real one is two
// thirds of it, times block_ffn_dim_multiplier, rounded up to a multiple of block_multiple_of.
inline int64_t read_width(const JsonReader& json) {
  const char* const name = json.has("block_ff_dim") ? "block_ff_dim" : "intermediate_size";
  int64_t width = json.integer(name, 1, kMaxSize);
  if (!json.boolean_or("block_auto_adjust_ff_dim", true)) return width;
  const int64_t unit = json.integer_or("block_multiple_of", 256, 1, kMaxSize);
  width = 2 * width / 3;
  width = multiplied(width, json.number_or("block_ffn_dim_multiplier", 1, 1e-3, 1e3));
  width = (width + unit - 1) / unit * unit;
  if (width < 1 || width > kMaxSize) json.fail(name, "a width that stays above 0 when adjusted");
  return width;
}

inline ModelConfig read_layers(const JsonReader& json, const char* family) {
  ModelConfig c =
      read_common(json, family, {.kv_heads = 8, .max_positions = 128000, .widths = true});
  // The older names take precedence, as in transformers.
  c.tied_head = json.boolean_or("tie_embedding", json.boolean_or("tie_word_embeddings", true));
  c.norm_eps = json.number_or("norm_eps", 1e-5, 0, 1);
  require_false(json, {"attention_bias", "mlp_bias"});
  c.ropes = {read_rope(json, "", 1e6, {.theta = {"theta", "rope_theta"}})};
  const std::vector<int64_t> full = json.integers("full_attn_idxs", 0, kMaxLayers);
  const bool convolves = json.has("full_attn_idxs");
  c.recurrent_of = read_recurrent(
      json, c.layers, {"conv", "linear_attention"}, {"full_attention"},
      [&](int64_t i) { return convolves && std::ranges::find(full, i) == full.end(); });
  if (c.recurrent_of.empty()) return c;
  c.recurrence.kind = Recurrence::Kind::short_conv;
  c.recurrence.taps = json.integer_or("conv_L_cache", 3, 1, kMaxTaps);
  c.recurrence.channels = c.hidden_size;
  c.recurrence.conv_bias = c.recurrence.projection_bias = json.boolean_or("conv_bias", false);
  return c;
}

inline ModelConfig read_config(const JsonReader& json) {
  ModelConfig c = read_layers(json, "lfm2");
  c.intermediate_size = read_width(json);
  return c;
}

inline ModelConfig read_mixture(const JsonReader& json) {
  ModelConfig c = read_layers(json, "lfm2_moe");
  c.intermediate_size = json.integer("intermediate_size", 1, kMaxSize);
  c.experts = read_experts(json, {.width = "moe_intermediate_size",
                                  .divided = true,
                                  .sigmoid = true,
                                  .count = 32,
                                  .chosen = 4});
  c.experts.biased = json.boolean_or("use_expert_bias", true);
  const int64_t dense = std::min(json.integer_or("num_dense_layers", 2, 0, kMaxLayers), c.layers);
  for (int64_t i = 0; i < dense; ++i) c.experts.dense.push_back(i);
  return c;
}

inline Lfm2::Lfm2(ModelConfig config, WeightLoader& w) : Decoder(std::move(config)) {
  const ModelConfig& c = config_;
  embedding_ = w.matrix("embeddings", {{"embed_tokens.weight", c.vocab_size}}, c.hidden_size);
  final_norm_ = load_rms_norm(w, "embedding_norm", c.hidden_size);
  if (!c.tied_head) head_ = w.head(c.vocab_size, c.hidden_size);
  each_layer([&](const std::string& at) {
    layers_.push_back(load_layer(w, at, static_cast<int64_t>(layers_.size())));
  });
}

inline Lfm2::Layer Lfm2::load_layer(WeightLoader& w, const std::string& at, int64_t index) const {
  const ModelConfig& c = config_;
  const LayerShape s = c.layer(index);
  const std::string self = at + "self_attn.", conv = at + "conv.", mlp = at + "feed_forward.";
  Layer l;
  l.operator_norm = load_rms_norm(w, at + "operator_norm", c.hidden_size);
  l.mlp_norm = load_rms_norm(w, at + "ffn_norm", c.hidden_size);
  if (s.recurrent) {
    const bool bias = c.recurrence.projection_bias;
    l.conv = {w.linear("attention", {{conv + "in_proj", 3 * c.hidden_size}}, c.hidden_size, bias),
              w.linear("attention", {{conv + "out_proj", c.hidden_size}}, c.hidden_size, bias),
              load_convolution(w, conv + "conv", c.recurrence), RecurrentOffsets(c, index)};
  } else {
    l.qkv = w.linear("attention",
                     {{self + "q_proj", s.queries()},
                      {self + "k_proj", s.keys()},
                      {self + "v_proj", s.values()}},
                     c.hidden_size, false);
    l.o = w.linear("attention", {{self + "out_proj", c.hidden_size}}, s.output(), false);
    l.q_norm = load_rms_norm(w, self + "q_layernorm", c.head_dim);
    l.k_norm = load_rms_norm(w, self + "k_layernorm", c.head_dim);
  }
  if (c.has_experts(index)) {
    l.router.linear = w.exact("mlp", {mlp + "gate", c.experts.count}, c.hidden_size, false);
    if (c.experts.biased) l.router.bias = w.vector("mlp", mlp + "expert_bias", c.experts.count);
    l.experts = load_experts(w, c, mlp, {"experts", "w1", "w3", "w2"});
    return l;
  }
  l.gate_up = w.linear("mlp", {{mlp + "w1", s.intermediate}, {mlp + "w3", s.intermediate}},
                       c.hidden_size, false);
  l.down = w.linear("mlp", {{mlp + "w2", c.hidden_size}}, s.intermediate, false);
  return l;
}

inline void Lfm2::attention(const LayerPass& at) const {
  const Layer& l = layers_[at.index];
  const Qkv x = attention_input(at, l.operator_norm, l.qkv);
  norm_heads(at, l.q_norm, x.q);
  norm_heads(at, l.k_norm, x.k);
  rotate(at, x);
  attend(at, x);
  attention_output(at, l.o);
}

inline void Lfm2::short_conv(const LayerPass& at) const {
  const ShortConv& s = layers_[at.index].conv;
  const Pass& p = at.p;
  const size_t hidden = p.x.width;
  const Rows thirds = own_rows(p, kThirds), out = own_rows(p, kOutput),
             b = thirds.columns(0, hidden), c = thirds.columns(hidden, hidden),
             u = thirds.columns(2 * hidden, hidden);
  norm(at, Point::ln1, layers_[at.index].operator_norm, p.x, p.normed);
  linear(at.t, p, s.in, p.normed, thirds);
  multiply(at.t, p, b, u, u);
  convolve(at, s.conv, s.arrays, u, false);
  multiply(at.t, p, c, u, out);
  linear(at.t, p, s.out, out, p.out);
}

inline void Lfm2::layer(const LayerPass& at) const {
  const Layer& l = layers_[at.index];
  const Pass& p = at.p;
  if (at.shape.recurrent)
    short_conv(at);
  else
    attention(at);
  add_attention(at);

  norm(at, Point::ln2, l.mlp_norm, p.x, p.normed);
  if (l.experts.count > 0)
    experts(at, l.router, l.experts, Gate::silu, p.normed);
  else
    gated_mlp(at, l.gate_up, l.down, Gate::silu, p.normed);
  add_mlp(at);
}

}  // namespace lfm2

inline Family lfm2_family() {
  return {{"Lfm2ForCausalLM"},   {"lfm2"},   lfm2::read_config,
          "embed_tokens.weight", {"model."}, load_model<lfm2::Lfm2>};
}

inline Family lfm2_moe_family() {
  return {{"Lfm2MoeForCausalLM"}, {"lfm2_moe"}, lfm2::read_mixture,
          "embed_tokens.weight",  {"model."},   load_model<lfm2::Lfm2>};
}

}  // namespace stet
