// Gemma 3n, text: E2B and E4B. There are several residual streams (AltUp, arXiv 2301.13310). Layers
// read and write one of them, and predict and correct the others. A linear path runs beside
// attention (LAuReL, arXiv 2411.07501). Layers have inputs and share keys and values as in Gemma 4.
// Source: transformers' modeling_gemma3n.py.
#pragma once

#include "models/gemma4.hpp"
#include "stet/kernels/streams.hpp"

namespace stet {

namespace gemma3n {

constexpr int64_t kMostStreams = 64;
// Stands for the quantile of one half, because a threshold of 0 means none. Float32 can hold it.
constexpr double kMedian = 1e-40;

class Gemma3n : public Decoder {
 public:
  Gemma3n(ModelConfig config, WeightLoader& w);
  bool begins_at_layers() const override { return false; }

 private:
  void enter_layers(Team t, const Pass& p) const override;
  void layer(const LayerPass& at) const override;
  void leave_layers(Team t, const Pass& p) const override;
  std::vector<int64_t> own_widths() const override;

  struct Layer : LinearLayers {
    explicit Layer(LinearLayers linear) : LinearLayers(std::move(linear)) {}

    Norm input_norm, post_attention_norm, pre_mlp_norm, post_mlp_norm;  // [hidden]
    Norm q_norm, k_norm, v_norm;                                        // [head_dim]
    LayerInputGate input;
    Linear router;                     // [streams][hidden]
    Norm router_norm;                  // [hidden]
    Linear prediction, correction;     // [streams^2][streams], [streams][streams]
    Vector output_scale;               // [hidden]
    Linear laurel_left, laurel_right;  // [rank][hidden], [hidden][rank]
    Norm laurel_norm;                  // [hidden]
  };
  Layer load_layer(WeightLoader& w, const std::string& at, const LayerShape& s) const;

  // The current residual streams are at kStreams, a layer's predictions of them after those.
  enum { kModalities = LayerInputs::kOwn, kCoefficients, kLaurelRank, kLaurel, kStreams };
  size_t streams() const { return static_cast<size_t>(config_.streams); }
  bool is_active(size_t i) const { return i == static_cast<size_t>(config_.active_stream); }
  Rows stream(const Pass& p, size_t i) const {
    return is_active(i) ? p.x : own_rows(p, kStreams + i);
  }
  Rows predicted(const Pass& p, size_t i) const { return own_rows(p, kStreams + streams() + i); }

  // own[kModalities] = tanh(router(norm(x) / hidden)).
  void route(Team t, const Pass& p, const Layer& l, Rows x) const;
  void predict(const LayerPass& at, const Layer& l) const;
  void correct(const LayerPass& at, const Layer& l) const;
  void mlp(const LayerPass& at, const Layer& l) const;
  // y's rows get the root mean square of those of `like`.
  void rescale(Team t, const Pass& p, Rows like, Rows y) const;

  LayerInputs inputs_;
  std::vector<Linear> projections_, unembed_projections_;  // [hidden][hidden], of all but stream 0
  std::vector<Layer> layers_;
};

// The defaults of transformers' Gemma3nTextConfig, for fields that configs leave out.
constexpr Defaults kDefaults = {.vocab_size = 262400,
                                .hidden_size = 2048,
                                .intermediate_size = 16384,
                                .layers = 35,
                                .heads = 8,
                                .kv_heads = 2,
                                .head_dim = 256,
                                .max_positions = 32768,
                                .tied_head = true,
                                .widths = true};

// One width of the MLP, or one for each layer.
inline void read_widths(const JsonReader& json, ModelConfig& c) {
  const std::vector<int64_t> widths = json.integer_or_integers("intermediate_size", 1, kMaxSize);
  c.intermediate_size = widths.empty() ? kDefaults.intermediate_size
                                       : *std::max_element(widths.begin(), widths.end());
  if (widths.size() <= 1) return;
  if (static_cast<int64_t>(widths.size()) != c.layers)
    json.fail("intermediate_size", "one entry for each layer");
  const bool same = std::ranges::count(widths, widths[0]) == std::ssize(widths);
  if (!same) c.intermediate_of = widths;
}

// Sets each layer's threshold of gates, in standard deviations: the quantile of the normal
// distribution below which the configured fraction of gates is dropped. 0 drops none. The first
// layers of a deep model are sparse if the config does not say.
inline void read_sparsity(const JsonReader& json, ModelConfig& c) {
  constexpr int64_t kSparse = 10;
  std::vector<double> parts = json.numbers("activation_sparsity_pattern");
  if (!json.has("activation_sparsity_pattern") && c.layers > kSparse) {
    parts.assign(static_cast<size_t>(c.layers), 0);
    std::fill_n(parts.begin(), kSparse, 0.95);
  }
  if (parts.empty() || std::ranges::count(parts, 0.0) == std::ssize(parts)) return;
  if (static_cast<int64_t>(parts.size()) != c.layers)
    json.fail("activation_sparsity_pattern", "one entry for each layer");
  for (const double part : parts) {
    if (!(part >= 0 && part < 1)) json.fail("activation_sparsity_pattern", "numbers in 0..1");
    const double quantile = part > 0 ? normal_quantile(part) : 0;
    c.gate_floor.push_back(part > 0 && quantile == 0 ? kMedian : quantile);
  }
}

inline ModelConfig read_config(const JsonReader& top) {
  const std::optional<JsonReader> nested = top.object("text_config");
  const JsonReader& json = nested ? *nested : top;
  ModelConfig c = read_common(json, "gemma3n", kDefaults);
  require_false(json, {"attention_bias", "mlp_bias"});
  read_widths(json, c);
  if (nested && top.has("eos_token_id")) c.eos_ids = read_ids(top, "eos_token_id", c.vocab_size);
  if (!json.has("tie_word_embeddings")) c.tied_head = top.boolean_or("tie_word_embeddings", true);
  c.embedding_scale = static_cast<double>(square_root(static_cast<float>(c.hidden_size)));
  c.attention_scale = 1;
  c.logit_softcap = read_optional(json, "final_logit_softcapping", 30, 1e-6, 1e6);
  const int64_t window = json.integer_or("sliding_window", 512, 1, int64_t{1} << 32);
  c.window = read_windows(json, c.layers, window, [](int64_t i) { return (i + 1) % 5 != 0; });
  gemma4::read_owners(json, 15, c);
  gemma4::read_layer_inputs(json, c);
  const char* const local = "rope_local_base_freq";
  c.ropes = {
      read_rope(json, "full_attention", 1e6, {.others = {local}}),
      read_rope(json, "sliding_attention", 10000, {.theta = {local}, .others = {"rope_theta"}})};
  for (size_t i = 0; i < c.window.size(); ++i) c.rope_of[i] = c.window[i] == 0 ? 0 : 1;
  c.streams = json.integer_or("altup_num_inputs", 4, 2, kMostStreams);
  c.active_stream = json.integer_or("altup_active_idx", 0, 0, c.streams - 1);
  c.scaled_streams = json.boolean_or("altup_correct_scale", true);
  c.laurel_rank = json.integer_or("laurel_rank", 64, 1, kMaxSize);
  read_sparsity(json, c);
  require_activation(json, "hidden_activation", {"gelu_pytorch_tanh"});
  return c;
}

inline Gemma3n::Gemma3n(ModelConfig config, WeightLoader& w)
    : Decoder(std::move(config), w, 0), inputs_(w, config_) {
  const int64_t hidden = config_.hidden_size;
  const auto projections = [&](const std::string& name) {
    std::vector<Linear> all;
    for (size_t j = 0; j + 1 < streams(); ++j)
      all.push_back(w.linear("mlp", {{name + "." + std::to_string(j), hidden}}, hidden, false));
    return all;
  };
  projections_ = projections("altup_projections");
  unembed_projections_ = projections("altup_unembed_projections");
  each_layer([&](const std::string& at) {
    layers_.push_back(load_layer(w, at, config_.layer(static_cast<int64_t>(layers_.size()))));
  });
}

inline Gemma3n::Layer Gemma3n::load_layer(WeightLoader& w, const std::string& at,
                                          const LayerShape& s) const {
  const ModelConfig& c = config_;
  const int64_t hidden = c.hidden_size, n = c.streams;
  const std::string altup = at + "altup.", laurel = at + "laurel.";
  const auto norm = [&](const std::string& name, int64_t width) {
    return load_rms_norm(w, at + name, width);
  };
  const auto linear = [&](const std::string& name, int64_t rows, int64_t columns) {
    return w.linear("mlp", {{name, rows}}, columns, false);
  };
  Layer l(LinearLayers(w, hidden, s, at));
  l.input_norm = norm("input_layernorm", hidden);
  l.post_attention_norm = norm("post_attention_layernorm", hidden);
  l.pre_mlp_norm = norm("pre_feedforward_layernorm", hidden);
  l.post_mlp_norm = norm("post_feedforward_layernorm", hidden);
  l.q_norm = norm("self_attn.q_norm", s.key_dim);
  if (s.own) l.k_norm = norm("self_attn.k_norm", s.key_dim);
  l.v_norm = {Vector(static_cast<size_t>(s.value_dim), 1.0f), {}, l.q_norm.eps};
  l.input = LayerInputGate(w, c, at);
  l.router = linear(altup + "modality_router", n, hidden);
  l.router_norm = norm("altup.router_norm", hidden);
  l.prediction = linear(altup + "prediction_coefs", n * n, n);
  l.correction = linear(altup + "correction_coefs", n, n);
  if (c.scaled_streams) l.output_scale = w.vector("norms", altup + "correct_output_scale", hidden);
  l.laurel_left = linear(laurel + "linear_left", c.laurel_rank, hidden);
  l.laurel_right = linear(laurel + "linear_right", hidden, c.laurel_rank);
  l.laurel_norm = norm("laurel.post_laurel_norm", hidden);
  return l;
}

inline std::vector<int64_t> Gemma3n::own_widths() const {
  const ModelConfig& c = config_;
  std::vector<int64_t> widths = LayerInputs::own_widths(c);
  widths.insert(widths.end(), {c.streams, c.streams * c.streams, c.laurel_rank, c.hidden_size});
  widths.insert(widths.end(), 2 * streams(), c.hidden_size);
  return widths;
}

inline void Gemma3n::rescale(Team t, const Pass& p, Rows like, Rows y) const {
  detail::each_row(t, y.count, [&](size_t r) {
    const auto size = [&](const float* x) { return p.kernels->norm_scale(x, 0, false, y.width); };
    rescale_stream(y.row(r), size(like.row(r)), size(y.row(r)), y.width);
  });
}

// Stream 0 is the embedding, the others are projections of it.
inline void Gemma3n::enter_layers(Team t, const Pass& p) const {
  inputs_.compute(t, p, config_, p.x);
  const Rows h = p.out;
  detail::each_row(t, h.count, [&](size_t r) { std::copy_n(p.x.row(r), h.width, h.row(r)); });
  for (size_t i = 0; i < streams(); ++i) {
    const Rows x = stream(p, i);
    if (i > 0) {
      linear(t, p, projections_[i - 1], h, x);
      rescale(t, p, h, x);
    } else if (!is_active(0)) {
      detail::each_row(t, h.count, [&](size_t r) { std::copy_n(h.row(r), h.width, x.row(r)); });
    }
  }
}

inline void Gemma3n::route(Team t, const Pass& p, const Layer& l, Rows x) const {
  const Rows y = own_rows(p, kModalities);
  norm(t, p, l.router_norm, x, p.out);
  divide(t, p, static_cast<double>(config_.hidden_size), p.out);
  linear(t, p, l.router, p.out, y);
  detail::each_row(t, y.count, [&](size_t r) { p.kernels->tanh(y.row(r), y.row(r), y.width); });
}

// Predicts every stream as a mixture of all streams. Sets p.x to the prediction of the active one.
inline void Gemma3n::predict(const LayerPass& at, const Layer& l) const {
  const Pass& p = at.p;
  const Rows weights = own_rows(p, kCoefficients);
  route(at.t, p, l, p.x);
  linear(at.t, p, l.prediction, own_rows(p, kModalities), weights);
  const size_t n = streams();
  detail::each_row(at.t, p.x.count, [&](size_t r) {
    const float* all[kMostStreams];
    for (size_t i = 0; i < n; ++i) all[i] = stream(p, i).row(r);
    for (size_t i = 0; i < n; ++i)
      mix_streams(all[i], all, weights.row(r) + i * n, n, predicted(p, i).row(r), p.x.width);
    std::copy_n(predicted(p, static_cast<size_t>(config_.active_stream)).row(r), p.x.width,
                p.x.row(r));
  });
}

// Sets every stream to its prediction plus a part of the change that the layer made to the active one.
inline void Gemma3n::correct(const LayerPass& at, const Layer& l) const {
  const Pass& p = at.p;
  const Rows weights = own_rows(p, kCoefficients).columns(0, streams());
  route(at.t, p, l, p.x);
  linear(at.t, p, l.correction, own_rows(p, kModalities), weights);
  const Rows active = predicted(p, static_cast<size_t>(config_.active_stream)), before = p.normed;
  detail::each_row(at.t, p.x.count, [&](size_t r) {
    std::copy_n(active.row(r), active.width, before.row(r));
    for (size_t i = 0; i < streams(); ++i)
      correct_stream(p.x.row(r), before.row(r), weights.row(r)[i], predicted(p, i).row(r),
                     p.x.width);
    for (size_t i = 0; i < streams(); ++i)
      std::copy_n(predicted(p, i).row(r), p.x.width, stream(p, i).row(r));
  });
}

// Computes the gated MLP of p.normed. A sparse layer keeps only the gates above its threshold.
inline void Gemma3n::mlp(const LayerPass& at, const Layer& l) const {
  const Team t = at.t;
  const Pass& p = at.p;
  const ModelConfig& c = at.config;
  const size_t index = at.index;
  const double floor = c.gate_floor.empty() ? 0 : c.gate_floor[index];
  if (floor == 0) return gated_mlp(at, l.gate_up, l.down, Gate::gelu_tanh, p.normed);
  const size_t width = p.mlp.width;
  linear(t, p, l.gate_up, p.normed, p.gate_up);
  point(t, p, Point::mlp_pre, index, p.gate_up.columns(0, width));
  point(t, p, Point::mlp_pre_linear, index, p.gate_up.columns(width, width));
  detail::each_row(t, p.mlp.count, [&](size_t r) {
    float* const gates = p.gate_up.row(r);
    drop_below(gates, static_cast<float>(floor), width);
    p.kernels->gelu_tanh_mul(gates, gates + width, p.mlp.row(r), width);
  });
  point(t, p, Point::mlp_post, index, p.mlp);
  linear(t, p, l.down, p.mlp, p.out);
}

inline void Gemma3n::layer(const LayerPass& at) const {
  const Team t = at.t;
  const Pass& p = at.p;
  const ModelConfig& c = at.config;
  const size_t index = at.index;
  const Layer& l = layers_[index];
  predict(at, l);
  const Qkv x = attention_input(at, l.input_norm, l.qkv);
  const Rows laurel = own_rows(p, kLaurel), rank = own_rows(p, kLaurelRank);
  linear(t, p, l.laurel_left, p.normed, rank);
  linear(t, p, l.laurel_right, rank, laurel);
  norm(at, l.laurel_norm, laurel, laurel);
  add(t, p, laurel, p.normed);
  norm_heads(at, l.q_norm, x.q);
  norm_heads(at, l.k_norm, x.k);
  norm_heads(at, l.v_norm, x.v);
  rotate(at, x);
  attend(at, x);
  attention_output(at, l.o);
  norm(at, l.post_attention_norm, p.out, p.out);
  point(t, p, Point::attn_out, index, p.out);
  add(t, p, p.x, p.out);
  add(t, p, p.x, laurel);
  scale(t, p, inverse_square_root(2), p.x);
  point(t, p, Point::resid_mid, index, p.x);

  norm(at, Point::ln2, l.pre_mlp_norm, p.x, p.normed);
  mlp(at, l);
  norm(at, l.post_mlp_norm, p.out, p.out);
  add_mlp_output(at);
  correct(at, l);

  // The layer's input goes to all streams but the first.
  const Rows scaled = p.normed;
  detail::each_row(t, scaled.count, [&](size_t r) {
    std::copy_n(p.x.row(r), scaled.width, scaled.row(r));
    if (c.scaled_streams) multiply({scaled.row(r), scaled.width}, l.output_scale);
  });
  l.input(at, scaled);
  for (size_t i = 1; i < streams(); ++i) add(t, p, stream(p, i), p.out);
  leave_layer(at);
}

// p.x = the mean of stream 0 and of projections of the others.
inline void Gemma3n::leave_layers(Team t, const Pass& p) const {
  for (size_t i = 1; i < streams(); ++i) {
    linear(t, p, unembed_projections_[i - 1], stream(p, i), predicted(p, i));
    rescale(t, p, stream(p, 0), predicted(p, i));
  }
  detail::each_row(t, p.x.count, [&](size_t r) {
    const float* all[kMostStreams] = {stream(p, 0).row(r)};
    for (size_t i = 1; i < streams(); ++i) all[i] = predicted(p, i).row(r);
    mean_of_streams(all, streams(), p.x.row(r), p.x.width);
  });
}

}  // namespace gemma3n

inline Family gemma3n_family() {
  return {{"Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"},
          {"gemma3n_text", "gemma3n"},
          gemma3n::read_config,
          "embed_tokens.weight",
          {"model.", "model.language_model.", "language_model.model."},
          load_model<gemma3n::Gemma3n>};
}

}  // namespace stet
