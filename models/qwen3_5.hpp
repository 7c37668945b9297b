// Qwen3.5 and Qwen3.6, dense and mixtures of experts, text: three layers of four are Gated
// DeltaNets, the others attention whose output is gated.
// Source: "Gated Delta Networks", arXiv 2412.06464, and transformers' modeling_qwen3_5.py.
#pragma once

#include "models/layer_inputs.hpp"
#include "stet/model/decoder.hpp"
#include "stet/model/experts.hpp"
#include "stet/model/recurrence.hpp"

namespace stet {

namespace qwen3_5 {

constexpr float kNormOffset = 1;  // all norms multiply by 1 + w, except the DeltaNet's

// A Gated DeltaNet. Queries, keys and values go through a convolution; the state of each value head
// decays, and is corrected towards the value.
struct DeltaNet {
  DeltaNet() = default;
  DeltaNet(WeightLoader& w, const ModelConfig& c, const std::string& at, int64_t layer);

  Linear qkvz;  // [queries + keys + values + gates][hidden]
  Linear ba;    // [2 value heads][hidden]: the rates of correction, then the decays
  Linear out;   // [hidden][values]
  Convolution conv;
  StateGates gates;
  Norm norm;  // [value_dim]
  RecurrentOffsets arrays;
};

class Qwen35 : public Decoder {
 public:
  Qwen35(ModelConfig config, WeightLoader& w);

 protected:
  std::vector<int64_t> own_widths() const override;

 private:
  // The family's own activations: queries, keys, values and gates of a DeltaNet; its rates and
  // decays; its output; the gates of attention.
  enum { kMixed, kFactors, kOutput, kGate };

  void layer(const LayerPass& at) const override;
  void attention(const LayerPass& at) const;
  void delta_net(const LayerPass& at) const;
  void feed_forward(const LayerPass& at) const;

  struct Layer {
    Norm input_norm, post_attention_norm;  // [hidden]
    DeltaNet delta;                        // recurrent layers only
    Linear qkv, gate, o;                   // attention layers only
    Norm q_norm, k_norm;                   // [head_dim]
    ExpertRouter router;
    Experts experts;
    SharedExpert shared;
    Linear gate_up, down;  // dense layers only
  };
  Layer load_layer(WeightLoader& w, const std::string& at, int64_t index) const;

  std::vector<Layer> layers_;
};

// Defaults of transformers that differ between these families. `experts` is 0 for dense models.
struct Published {
  const char* family;
  int64_t kv_heads, experts = 0, chosen = 0;
  bool varies = false;  // the config may leave weights undivided, and name dense layers
};

// Reads the experts: those of Qwen 3 and a shared one, whose output has a gate.
inline void read_mixture(const JsonReader& json, const Published& defaults, ModelConfig* c) {
  std::optional<RouterRule> rule;
  if (!defaults.varies) rule = RouterRule::softmax_divided;
  c->experts = read_experts(json, {.width = "moe_intermediate_size",
                                   .rule = rule,
                                   .divided = true,
                                   .count = defaults.experts,
                                   .chosen = defaults.chosen});
  c->experts.shared = json.integer_or("shared_expert_intermediate_size", 512, 1, kMaxSize);
  if (!defaults.varies) return;
  const std::vector<int64_t> plain = json.integers("mlp_only_layers", 0, kMaxLayers);
  const int64_t step = json.integer_or("decoder_sparse_step", 1, 1, kMaxLayers);
  for (int64_t i = 0; i < c->layers; ++i) {
    if ((i + 1) % step != 0 || std::ranges::find(plain, i) != plain.end())
      c->experts.dense.push_back(i);
  }
}

// Reads what Qwen3-Next and Qwen3.5 share.
inline ModelConfig read_layers(const JsonReader& json, const Published& defaults) {
  const bool mixture =
      json.integer_or("num_experts", defaults.experts, 0, static_cast<int64_t>(kMostExperts)) > 0;
  // Mixtures without dense layers need no intermediate_size.
  const int64_t width = mixture ? json.integer("moe_intermediate_size", 1, kMaxSize)
                                : json.integer_or("moe_intermediate_size", 0, 0, kMaxSize);
  ModelConfig c = read_common(json, defaults.family,
                              {.intermediate_size = width,
                               .kv_heads = defaults.kv_heads,
                               .head_dim = 256,
                               .max_positions = 32768});
  require_false(json, {"attention_bias", "mlp_bias", "use_sliding_window"});
  require_activation(json, "hidden_act", {"silu"});
  if (!json.boolean_or("attn_output_gate", true))
    throw Error(ErrorKind::unsupported, json.file(), json.path_of("attn_output_gate"), "true",
                "false");
  read_rotary_part(json, 0.25, &c);
  c.ropes = {read_rope(json, "", 10000, {.others = {"partial_rotary_factor"}})};
  const int64_t interval = json.integer_or("full_attention_interval", 4, 1, kMaxLayers);
  c.recurrent_of = read_recurrent(json, c.layers, {"linear_attention"}, {"full_attention"},
                                  [&](int64_t i) { return (i + 1) % interval != 0; });
  if (mixture) read_mixture(json, defaults, &c);
  if (c.recurrent_of.empty()) return c;
  Recurrence& r = c.recurrence;
  r.kind = Recurrence::Kind::delta_net;
  r.groups = json.integer_or("linear_num_key_heads", 16, 1, kMaxHeads);
  r.heads = json.integer_or("linear_num_value_heads", 32, 1, kMaxHeads);
  r.key_dim = json.integer_or("linear_key_head_dim", 128, 1, kMaxHeadDim);
  r.value_dim = json.integer_or("linear_value_head_dim", 128, 1, kMaxHeadDim);
  r.taps = json.integer_or("linear_conv_kernel_dim", 4, 1, kMaxTaps);
  r.channels = 2 * r.groups * r.key_dim + r.heads * r.value_dim;
  if (r.heads % r.groups != 0)
    json.fail("linear_num_value_heads",
              "a multiple of linear_num_key_heads " + std::to_string(r.groups));
  return c;
}

inline bool is_mixture(const JsonReader& json) {
  return json.string_or("model_type", "").starts_with("qwen3_5_moe");
}

inline ModelConfig read_config(const JsonReader& top) {
  const std::optional<JsonReader> nested = top.object("text_config");
  const JsonReader& json = nested ? *nested : top;
  const bool counted = json.integer_or("num_experts", 0, 0, static_cast<int64_t>(kMostExperts)) > 0;
  const bool mixture = counted || is_mixture(top) || is_mixture(json);
  ModelConfig c =
      read_layers(json, mixture ? Published{"qwen3_5_moe", 2, 256, 8} : Published{"qwen3_5", 4});
  if (nested && top.has("eos_token_id")) c.eos_ids = read_ids(top, "eos_token_id", c.vocab_size);
  if (!json.has("tie_word_embeddings")) c.tied_head = top.boolean_or("tie_word_embeddings", false);
  return c;
}

inline DeltaNet::DeltaNet(WeightLoader& w, const ModelConfig& c, const std::string& at,
                          int64_t layer)
    : arrays(c, layer) {
  const Recurrence& r = c.recurrence;
  const std::string mix = at + "linear_attn.";
  qkvz = w.linear("attention", {{mix + "in_proj_qkv", r.channels}, {mix + "in_proj_z", r.output()}},
                  c.hidden_size, false);
  ba = w.linear("attention", {{mix + "in_proj_b", r.heads}, {mix + "in_proj_a", r.heads}},
                c.hidden_size, false);
  out = w.linear("attention", {{mix + "out_proj", c.hidden_size}}, r.output(), false);
  conv = load_convolution(w, mix + "conv1d", r);
  gates = {w.vector("attention", mix + "A", r.heads),
           w.vector("attention", mix + "dt_bias", r.heads)};
  norm = {w.vector("norms", mix + "norm.weight", r.value_dim), {}, static_cast<float>(c.norm_eps)};
}

inline Qwen35::Qwen35(ModelConfig config, WeightLoader& w)
    : Decoder(std::move(config), w, kNormOffset) {
  each_layer([&](const std::string& at) {
    layers_.push_back(load_layer(w, at, static_cast<int64_t>(layers_.size())));
  });
}

inline Qwen35::Layer Qwen35::load_layer(WeightLoader& w, const std::string& at,
                                        int64_t index) const {
  const ModelConfig& c = config_;
  const LayerShape s = c.layer(index);
  const auto norm = [&](const char* name, int64_t n) {
    return load_rms_norm(w, at + name, n, kNormOffset);
  };
  Layer l;
  l.input_norm = norm("input_layernorm", c.hidden_size);
  l.post_attention_norm = norm("post_attention_layernorm", c.hidden_size);
  if (s.recurrent) {
    l.delta = DeltaNet(w, c, at, index);
  } else {
    AttentionLayers own(w, c.hidden_size, s, at);
    l.qkv = std::move(own.qkv);
    l.o = std::move(own.o);
    l.gate = w.linear("attention", {{at + "self_attn.q_gate", s.output()}}, c.hidden_size, false);
    l.q_norm = norm("self_attn.q_norm", c.head_dim);
    l.k_norm = norm("self_attn.k_norm", c.head_dim);
  }
  if (c.has_experts(index)) {
    l.router.linear = w.exact("mlp", {at + "mlp.gate", c.experts.count}, c.hidden_size, false);
    l.experts = load_experts(w, c, at, {"mlp.experts", "gate_proj", "up_proj", "down_proj"});
    l.shared = load_shared_expert(w, c, at + "mlp.shared_expert.", at + "mlp.shared_expert_gate");
    return l;
  }
  MlpLayers mlp(w, c.hidden_size, s, at);
  l.gate_up = std::move(mlp.gate_up);
  l.down = std::move(mlp.down);
  return l;
}

inline std::vector<int64_t> Qwen35::own_widths() const {
  const Recurrence& r = config_.recurrence;
  return {r.channels + r.output(), 2 * r.heads, r.output(), config_.layer(0).output()};
}

inline void Qwen35::attention(const LayerPass& at) const {
  const Layer& l = layers_[at.index];
  const Rows gate = own_rows(at.p, kGate);
  const Qkv x = attention_input(at, l.input_norm, l.qkv);
  linear(at.t, at.p, l.gate, at.p.normed, gate);
  norm_heads(at, l.q_norm, x.q);
  norm_heads(at, l.k_norm, x.k);
  rotate(at, x);
  attend(at, x, {}, &gate);
  attention_output(at, l.o);
}

inline void Qwen35::delta_net(const LayerPass& at) const {
  const DeltaNet& d = layers_[at.index].delta;
  const Pass& p = at.p;
  const Kernels& k = *p.kernels;
  const Recurrence& r = config_.recurrence;
  const auto heads = static_cast<size_t>(r.heads), key_dim = static_cast<size_t>(r.key_dim),
             value_dim = static_cast<size_t>(r.value_dim),
             keys = static_cast<size_t>(r.groups) * key_dim, values = heads * value_dim;
  const Rows mixed = own_rows(p, kMixed), factors = own_rows(p, kFactors),
             out = own_rows(p, kOutput);
  const Rows q = mixed.columns(0, keys), key = mixed.columns(keys, keys),
             v = mixed.columns(2 * keys, values), z = mixed.columns(2 * keys + values, values),
             beta = factors.columns(0, heads), decay = factors.columns(heads, heads);
  norm(at, Point::ln1, layers_[at.index].input_norm, p.x, p.normed);
  linear(at.t, p, d.qkvz, p.normed, mixed);
  linear(at.t, p, d.ba, p.normed, factors);
  convolve(at, d.conv, d.arrays, mixed.columns(0, 2 * keys + values), true);
  l2_norm_heads(at, key_dim,
                static_cast<float>(inverse_square_root(static_cast<double>(r.key_dim))), q);
  l2_norm_heads(at, key_dim, 1, key);
  detail::each_row(at.t, p.x.count, [&](size_t row) {
    k.sigmoid(beta.row(row), beta.row(row), heads);
    k.softplus(decay.row(row), d.gates.dt_bias.data(), decay.row(row), heads);
    k.exp_of_product(decay.row(row), d.gates.a.data(), decay.row(row), heads);
  });
  update_states(at, d.arrays, {q, key, v, decay, beta, out, nullptr},
                [&](size_t row, size_t head, float* o) {
                  k.rms_norm(o, d.norm.weight.data(), d.norm.eps, o, value_dim);
                  k.silu_mul(z.row(row) + head * value_dim, o, o, value_dim);
                });
  linear(at.t, p, d.out, out, p.out);
}

inline void Qwen35::feed_forward(const LayerPass& at) const {
  const Layer& l = layers_[at.index];
  if (l.experts.count > 0)
    experts(at, l.router, l.experts, l.shared, Gate::silu, at.p.normed);
  else
    gated_mlp(at, l.gate_up, l.down, Gate::silu, at.p.normed);
}

inline void Qwen35::layer(const LayerPass& at) const {
  if (at.shape.recurrent)
    delta_net(at);
  else
    attention(at);
  add_attention(at);

  norm(at, Point::ln2, layers_[at.index].post_attention_norm, at.p.x, at.p.normed);
  feed_forward(at);
  add_mlp(at);
}

}  // namespace qwen3_5

inline Family qwen3_5_family() {
  return {{"Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForCausalLM",
           "Qwen3_5MoeForConditionalGeneration"},
          {"qwen3_5_text", "qwen3_5", "qwen3_5_moe_text", "qwen3_5_moe"},
          qwen3_5::read_config,
          "embed_tokens.weight",
          {"model.", "model.language_model."},
          load_model<qwen3_5::Qwen35>};
}

}  // namespace stet
