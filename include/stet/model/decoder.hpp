// The forward pass of a decoder: embeddings, layers over the residual stream, final norm. A family
// derives from it and adds its layers (layer.hpp).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "stet/model/family.hpp"
#include "stet/model/layer.hpp"

namespace stet {

// Base class of all decoders.
class Decoder : public Model {
 public:
  void forward(Team t, const Pass& p) const override;

 protected:
  // Loads nothing. For families whose tensors have other names or another order.
  explicit Decoder(ModelConfig config);
  // Loads embeddings, final norm and head under Llama's names. The checkpoint stores norm weights
  // minus `norm_offset`.
  Decoder(ModelConfig config, WeightLoader& w, float norm_offset);

  // Runs layer at.index: reads the residual stream p.x and adds to it.
  virtual void layer(const LayerPass& at) const = 0;
  // Sets p.x to the embeddings of p.ids times the config's embedding_scale.
  virtual void embed_tokens(Team t, const Pass& p) const;
  // Called before the first layer of the pass: prepares what layers read beside p.x, if anything.
  virtual void enter_layers(Team, const Pass&) const {}
  // Returns the embeddings of p.ids after interventions. They are p.x if the pass begins with the
  // first layer; otherwise they are computed into p.out.
  Rows embedding_rows(Team t, const Pass& p) const;
  // Called after the last layer: turns p.x into the input of the final norm.
  virtual void leave_layers(Team, const Pass&) const {}

  // Calls f("layers.0."), f("layers.1."), ... for every layer.
  template <class F>
  void each_layer(F f) const {
    for (int64_t i = 0; i < config_.layers; ++i) f("layers." + std::to_string(i) + ".");
  }
  // Loads NAME.weight of an RMS norm over `width` columns; for a layer norm also NAME.bias.
  Norm load_rms_norm(WeightLoader& w, const std::string& name, int64_t width,
                     float offset = 0) const;
  Norm load_layer_norm(WeightLoader& w, const std::string& name, int64_t width) const;

  std::vector<Frequencies> frequencies_;  // per Rope
};

// The linear layers that have biases.
struct Biases {
  bool qkv = false, o = false, mlp = false;
};

// The linear layers of layer `at` ("layers.0."), under Llama's names. If `fused`, qkv_proj and
// gate_up_proj replace the separate tensors, as in Phi-3.
struct AttentionLayers {
  AttentionLayers(WeightLoader& w, const ModelConfig& c, const std::string& at, Biases biases = {},
                  bool fused = false);
  // Loads a layer of shape `s` in a model whose layers differ. The layer may lack keys and values.
  AttentionLayers(WeightLoader& w, int64_t hidden, const LayerShape& s, const std::string& at,
                  Biases biases = {}, bool fused = false);

  Linear qkv;  // [queries + keys + values][hidden]
  Linear o;    // [hidden][output]
};
struct MlpLayers {
  MlpLayers(WeightLoader& w, const ModelConfig& c, const std::string& at, Biases biases = {},
            bool fused = false);
  MlpLayers(WeightLoader& w, int64_t hidden, const LayerShape& s, const std::string& at,
            Biases biases = {}, bool fused = false);

  Linear gate_up;  // [2 intermediate][hidden]
  Linear down;     // [hidden][intermediate]
};
struct LinearLayers : AttentionLayers, MlpLayers {
  LinearLayers(WeightLoader& w, const ModelConfig& c, const std::string& at, Biases biases = {},
               bool fused = false)
      : AttentionLayers(w, c, at, biases, fused), MlpLayers(w, c, at, biases, fused) {}
  LinearLayers(WeightLoader& w, int64_t hidden, const LayerShape& s, const std::string& at,
               Biases biases = {}, bool fused = false)
      : AttentionLayers(w, hidden, s, at, biases, fused),
        MlpLayers(w, hidden, s, at, biases, fused) {}
};

namespace detail {

// Returns x in the width that a layer has. Zeroes the padding that linear layers read, where a
// wider layer may have left numbers.
inline Rows narrowed(Team t, Rows x, int64_t width) {
  const Rows y = x.columns(0, static_cast<size_t>(width));
  const size_t padding = round_up(y.width, kQuantStrip) - y.width;
  if (y.width < x.width && padding > 0)
    each_row(t, y.count,
             [&](size_t r) { std::memset(y.row(r) + y.width, 0, padding * sizeof(float)); });
  return y;
}

// Returns the pass with the widths of one layer.
inline Pass pass_of_layer(Team t, const Pass& p, const LayerShape& s) {
  Pass own = p;
  own.attention = narrowed(t, p.attention, s.output());
  own.mlp = narrowed(t, p.mlp, s.intermediate);
  own.gate_up = p.gate_up.columns(0, static_cast<size_t>(2 * s.intermediate));
  return own;
}

}  // namespace detail

inline void Decoder::forward(Team t, const Pass& p) const {
  rope_tables(t, p, frequencies_);
  if (p.first_layer == 0) embed_tokens(t, p);
  enter_layers(t, p);
  for (size_t i = p.first_layer; i < static_cast<size_t>(config_.layers); ++i) {
    point(t, p, Point::resid_pre, i, p.x);
    const LayerShape shape = config_.layer(static_cast<int64_t>(i));
    layer({t, detail::pass_of_layer(t, p, shape), config_, i, shape});
  }
  leave_layers(t, p);
  norm(t, p, final_norm_, p.x, p.out);
  norm_point(t, p, Point::ln_final, 0, final_norm_, p.x, p.out);
}

inline Rows Decoder::embedding_rows(Team t, const Pass& p) const {
  if (p.first_layer == 0) return p.x;
  embed(t, p, embedding_, static_cast<float>(config_.embedding_scale), p.out);
  if (p.hooks != nullptr) p.hooks->visit_changes(t, Point::embed, 0, p.out, 0);
  return p.out;
}

inline void Decoder::embed_tokens(Team t, const Pass& p) const {
  embed(t, p, embedding_, static_cast<float>(config_.embedding_scale), p.x);
  point(t, p, Point::embed, 0, p.x);
}

inline Decoder::Decoder(ModelConfig config) : Model(std::move(config)) {
  for (const Rope& rope : config_.ropes)
    frequencies_.push_back(
        {inverse_frequencies(rope, config_.rotated(rope)), rope_magnitude(rope)});
}

inline Decoder::Decoder(ModelConfig config, WeightLoader& w, float norm_offset)
    : Decoder(std::move(config)) {
  const ModelConfig& c = config_;
  embedding_ = w.matrix("embeddings", {{"embed_tokens.weight", c.vocab_size}}, c.hidden_size);
  final_norm_ = load_rms_norm(w, "norm", c.hidden_size, norm_offset);
  if (!c.tied_head) head_ = w.head(c.vocab_size, c.hidden_size);
}

inline Norm Decoder::load_rms_norm(WeightLoader& w, const std::string& name, int64_t width,
                                   float offset) const {
  return {
      w.vector("norms", name + ".weight", width, offset), {}, static_cast<float>(config_.norm_eps)};
}

inline Norm Decoder::load_layer_norm(WeightLoader& w, const std::string& name,
                                     int64_t width) const {
  Norm n = load_rms_norm(w, name, width);
  n.bias = w.vector("norms", name + ".bias", width);
  return n;
}

inline AttentionLayers::AttentionLayers(WeightLoader& w, const ModelConfig& c,
                                        const std::string& at, Biases biases, bool fused)
    : AttentionLayers(w, c.hidden_size, c.layer(0), at, biases, fused) {}

inline AttentionLayers::AttentionLayers(WeightLoader& w, int64_t hidden, const LayerShape& s,
                                        const std::string& at, Biases biases, bool fused) {
  const std::string self = at + "self_attn.";
  using Parts = std::vector<WeightLoader::Part>;
  Parts parts = {{self + "q_proj", s.queries()}};
  if (s.own) parts.push_back({self + "k_proj", s.keys()});
  if (s.own && !s.values_are_keys) parts.push_back({self + "v_proj", s.values()});
  if (fused) parts = {{self + "qkv_proj", s.queries() + s.keys() + s.values()}};
  qkv = w.linear("attention", parts, hidden, biases.qkv);
  o = w.linear("attention", {{self + "o_proj", hidden}}, s.output(), biases.o);
}

inline MlpLayers::MlpLayers(WeightLoader& w, const ModelConfig& c, const std::string& at,
                            Biases biases, bool fused)
    : MlpLayers(w, c.hidden_size, c.layer(0), at, biases, fused) {}

inline MlpLayers::MlpLayers(WeightLoader& w, int64_t hidden, const LayerShape& s,
                            const std::string& at, Biases biases, bool fused) {
  const int64_t inter = s.intermediate;
  const std::string mlp = at + "mlp.";
  using Parts = std::vector<WeightLoader::Part>;
  gate_up = w.linear("mlp",
                     fused ? Parts{{mlp + "gate_up_proj", 2 * inter}}
                           : Parts{{mlp + "gate_proj", inter}, {mlp + "up_proj", inter}},
                     hidden, biases.mlp);
  down = w.linear("mlp", {{mlp + "down_proj", hidden}}, inter, biases.mlp);
}

}  // namespace stet
