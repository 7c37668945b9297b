// Granite 4: Mamba-2 layers beside attention (H), with or without experts, and Granite 4 without
// Mamba. Each layer has an MLP, whose output is added to that of the experts.
// Source: "Transformers are SSMs", arXiv 2405.21060 (Mamba-2), and transformers'
// modeling_granitemoehybrid.py.
#pragma once

#include "models/granite.hpp"
#include "models/layer_inputs.hpp"
#include "stet/model/decoder.hpp"
#include "stet/model/experts.hpp"
#include "stet/model/recurrence.hpp"

namespace stet {

namespace granite_hybrid {

// A Mamba-2 layer: out(norm(y * silu(z))), where y are the outputs of the states.
struct Mamba2 {
  Mamba2() = default;
  Mamba2(WeightLoader& w, const ModelConfig& c, const std::string& at, int64_t layer);

  Linear in;   // [gates + (values + B + C) + time steps][hidden]
  Linear out;  // [hidden][values]
  Convolution conv;
  StateGates gates;
  Vector skip;  // [heads]
  Norm norm;    // [values]
  RecurrentOffsets arrays;
};

class GraniteHybrid : public Decoder {
 public:
  GraniteHybrid(ModelConfig config, WeightLoader& w);

 private:
  // The family's own activations: the output of a Mamba layer's first matrix, time steps and decays,
  // and outputs of the states.
  enum { kMixed, kFactors, kOutput };

  std::vector<int64_t> own_widths() const override;
  void layer(const LayerPass& at) const override;
  void mamba(const LayerPass& at) const;

  struct Layer {
    Norm input_norm, post_attention_norm;  // [hidden]
    Mamba2 mamba;                          // recurrent layers only
    Linear qkv, o;                         // attention layers only
    ExpertRouter router;
    Experts experts;
    SharedExpert mlp;
  };
  Layer load_layer(WeightLoader& w, const std::string& at, int64_t index) const;

  std::vector<Layer> layers_;
};

inline void read_mamba(const JsonReader& json, ModelConfig* c) {
  Recurrence& r = c->recurrence;
  r.kind = Recurrence::Kind::mamba2;
  r.heads = json.integer_or("mamba_n_heads", 128, 1, kMaxHeads);
  r.groups = json.integer_or("mamba_n_groups", 1, 1, r.heads);
  r.key_dim = json.integer_or("mamba_d_state", 256, 1, kMaxHeadDim);
  r.taps = json.integer_or("mamba_d_conv", 4, 1, kMaxTaps);
  r.conv_bias = json.boolean_or("mamba_conv_bias", true);
  r.projection_bias = json.boolean_or("mamba_proj_bias", false);
  const int64_t inner = c->hidden_size * json.integer_or("mamba_expand", 2, 1, 64);
  if (inner % r.heads != 0 || r.heads % r.groups != 0)
    json.fail("mamba_n_heads",
              "a divisor of mamba_expand hidden_size, and a multiple of "
              "mamba_n_groups " +
                  std::to_string(r.groups));
  r.value_dim = inner / r.heads;
  if (r.value_dim > kMaxHeadDim ||
      read_integer_or_word(json, "mamba_d_head", "auto", r.value_dim, kMaxHeadDim) != r.value_dim)
    json.fail("mamba_d_head", "auto or " + std::to_string(r.value_dim));
  r.channels = inner + 2 * r.groups * r.key_dim;
  read_step_limits(json, "time_step_limit", &r);
}

inline ModelConfig read_config(const JsonReader& json) {
  ModelConfig c = read_common(json, "granitemoehybrid", {.widths = true});
  require_activation(json, "hidden_act", {"silu"});
  c.intermediate_size = json.integer("shared_intermediate_size", 1, kMaxSize);
  c.ropes = {read_rope(json, "", 10000)};
  if (json.string_or("position_embedding_type", "nope") != "rope")
    c.rope_of.assign(c.rope_of.size(), -1);
  granite::read_factors(json, &c);
  // transformers takes the first name as another one of the second.
  const char* const types = json.has("layers_block_type") ? "layers_block_type" : "layer_types";
  c.recurrent_of = read_recurrent(
      json, c.layers, {"mamba", "linear_attention"}, {"attention", "full_attention"},
      [](int64_t) { return true; }, types);
  if (!c.recurrent_of.empty()) read_mamba(json, &c);
  if (json.integer_or("num_local_experts", 8, 0, static_cast<int64_t>(kMostExperts)) > 0) {
    c.experts = read_experts(json, {.width = "intermediate_size",
                                    .rule = RouterRule::softmax_of_chosen,
                                    .count = 8,
                                    .chosen = 2});
    c.experts.shared = c.intermediate_size;
  } else if (c.recurrent_of.empty()) {
    c.family = "granite";  // with the tensors of Granite 3
  }
  return c;
}

inline Mamba2::Mamba2(WeightLoader& w, const ModelConfig& c, const std::string& at, int64_t layer)
    : arrays(c, layer) {
  const Recurrence& r = c.recurrence;
  const std::string mix = at + "mamba.";
  in = w.linear("attention", {{mix + "in_proj", r.output() + r.channels + r.heads}}, c.hidden_size,
                r.projection_bias);
  out = w.linear("attention", {{mix + "out_proj", c.hidden_size}}, r.output(), r.projection_bias);
  conv = load_convolution(w, mix + "conv1d", r);
  gates = {w.vector("attention", mix + "A", r.heads),
           w.vector("attention", mix + "dt_bias", r.heads)};
  skip = w.vector("attention", mix + "D", r.heads);
  norm = {w.vector("norms", mix + "norm.weight", r.output()), {}, static_cast<float>(c.norm_eps)};
}

inline GraniteHybrid::GraniteHybrid(ModelConfig config, WeightLoader& w)
    : Decoder(std::move(config), w, 0) {
  each_layer([&](const std::string& at) {
    layers_.push_back(load_layer(w, at, static_cast<int64_t>(layers_.size())));
  });
}

inline GraniteHybrid::Layer GraniteHybrid::load_layer(WeightLoader& w, const std::string& at,
                                                      int64_t index) const {
  const ModelConfig& c = config_;
  const LayerShape s = c.layer(index);
  const std::string moe = at + "block_sparse_moe.";
  Layer l;
  l.input_norm = load_rms_norm(w, at + "input_layernorm", c.hidden_size);
  l.post_attention_norm = load_rms_norm(w, at + "post_attention_layernorm", c.hidden_size);
  if (s.recurrent) {
    l.mamba = Mamba2(w, c, at, index);
  } else {
    const Biases biases = {.qkv = c.attention_bias, .o = c.attention_bias};
    AttentionLayers own(w, c.hidden_size, s, at, biases);
    l.qkv = std::move(own.qkv);
    l.o = std::move(own.o);
  }
  if (c.has_experts(index)) {
    l.router.linear = w.exact("mlp", {moe + "router.layer", c.experts.count}, c.hidden_size, false);
    l.experts = load_experts(w, c, moe, {"experts", "gate_proj", "up_proj", "down_proj"});
  }
  MlpLayers mlp(w, c.hidden_size, s, at);
  l.mlp = {std::move(mlp.gate_up), std::move(mlp.down)};
  return l;
}

inline std::vector<int64_t> GraniteHybrid::own_widths() const {
  const Recurrence& r = config_.recurrence;
  if (r.kind == Recurrence::Kind::none) return {};
  return {r.output() + r.channels + r.heads, 2 * r.heads, r.output()};
}

inline void GraniteHybrid::mamba(const LayerPass& at) const {
  const Mamba2& m = layers_[at.index].mamba;
  const Pass& p = at.p;
  const Kernels& k = *p.kernels;
  const Recurrence& r = config_.recurrence;
  const auto heads = static_cast<size_t>(r.heads), channels = static_cast<size_t>(r.channels),
             values = static_cast<size_t>(r.output()),
             keys = static_cast<size_t>(r.groups * r.key_dim);
  const Rows mixed = own_rows(p, kMixed), factors = own_rows(p, kFactors),
             out = own_rows(p, kOutput), steps = factors.columns(0, heads),
             decay = factors.columns(heads, heads);
  const Rows z = mixed.columns(0, values), u = mixed.columns(values, values),
             b = mixed.columns(2 * values, keys), c = mixed.columns(2 * values + keys, keys),
             projected = mixed.columns(values + channels, heads);
  norm(at, Point::ln1, layers_[at.index].input_norm, p.x, p.normed);
  linear(at.t, p, m.in, p.normed, mixed);
  convolve(at, m.conv, m.arrays, mixed.columns(values, channels), true);
  detail::each_row(at.t, p.x.count, [&](size_t row) {
    float* const dt = steps.row(row);
    k.softplus(projected.row(row), m.gates.dt_bias.data(), dt, heads);
    if (r.most_step > 0 || r.least_step > 0) limit_steps(r, {dt, heads});
    k.exp_of_product(dt, m.gates.a.data(), decay.row(row), heads);
  });
  update_states(at, m.arrays, {c, b, u, decay, steps, out, &m.skip}, [](size_t, size_t, float*) {});
  detail::each_row(at.t, p.x.count, [&](size_t row) {
    k.silu_mul(z.row(row), out.row(row), out.row(row), values);
    k.rms_norm(out.row(row), m.norm.weight.data(), m.norm.eps, out.row(row), values);
  });
  linear(at.t, p, m.out, out, p.out);
}

inline void GraniteHybrid::layer(const LayerPass& at) const {
  const Layer& l = layers_[at.index];
  const Pass& p = at.p;
  if (at.shape.recurrent) {
    mamba(at);
  } else {
    const Qkv x = attention_input(at, l.input_norm, l.qkv);
    rotate(at, x);
    attend(at, x);
    attention_output(at, l.o);
  }
  scale(at.t, p, config_.residual_scale, p.out);
  add_attention(at);

  norm(at, Point::ln2, l.post_attention_norm, p.x, p.normed);
  if (l.experts.count > 0)
    experts(at, l.router, l.experts, l.mlp, Gate::silu, p.normed);
  else
    gated_mlp(at, l.mlp.gate_up, l.mlp.down, Gate::silu, p.normed);
  scale(at.t, p, config_.residual_scale, p.out);
  add_mlp(at);
}

inline std::unique_ptr<Model> load(ModelConfig config, WeightLoader& w) {
  if (config.family == "granite") return llama::load(std::move(config), w);
  return std::make_unique<GraniteHybrid>(std::move(config), w);
}

}  // namespace granite_hybrid

inline Family granite_hybrid_family() {
  return {{"GraniteMoeHybridForCausalLM"}, {"granitemoehybrid"}, granite_hybrid::read_config,
          "embed_tokens.weight",           {"model."},           granite_hybrid::load};
}

}  // namespace stet
