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

  Linear qkv;  // [(heads + 2 kv_heads) head_dim][hidden]
  Linear o;    // [hidden][heads head_dim]
};
struct MlpLayers {
  MlpLayers(WeightLoader& w, const ModelConfig& c, const std::string& at, Biases biases = {},
            bool fused = false);

  Linear gate_up;  // [2 intermediate][hidden]
  Linear down;     // [hidden][intermediate]
};
struct LinearLayers : AttentionLayers, MlpLayers {
  LinearLayers(WeightLoader& w, const ModelConfig& c, const std::string& at, Biases biases = {},
               bool fused = false)
      : AttentionLayers(w, c, at, biases, fused), MlpLayers(w, c, at, biases, fused) {}
};

inline void Decoder::forward(Team t, const Pass& p) const {
  rope_tables(t, p, frequencies_);
  if (p.first_layer == 0) embed_tokens(t, p);
  for (size_t i = p.first_layer; i < static_cast<size_t>(config_.layers); ++i) {
    point(t, p, Point::resid_pre, i, p.x);
    layer({t, p, config_, i});
  }
  norm(t, p, final_norm_, p.x, p.out);
  norm_point(t, p, Point::ln_final, 0, final_norm_, p.x, p.out);
}

inline void Decoder::embed_tokens(Team t, const Pass& p) const {
  embed(t, p, embedding_, static_cast<float>(config_.embedding_scale), p.x);
  point(t, p, Point::embed, 0, p.x);
}

inline Decoder::Decoder(ModelConfig config) : Model(std::move(config)) {
  for (const Rope& rope : config_.ropes)
    frequencies_.push_back({inverse_frequencies(rope, config_.rotated()), rope_magnitude(rope)});
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
                                        const std::string& at, Biases biases, bool fused) {
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  const std::string self = at + "self_attn.";
  using Parts = std::vector<WeightLoader::Part>;
  qkv = w.linear("attention",
                 fused ? Parts{{self + "qkv_proj", q + 2 * kv}}
                       : Parts{{self + "q_proj", q}, {self + "k_proj", kv}, {self + "v_proj", kv}},
                 c.hidden_size, biases.qkv);
  o = w.linear("attention", {{self + "o_proj", c.hidden_size}}, q, biases.o);
}

inline MlpLayers::MlpLayers(WeightLoader& w, const ModelConfig& c, const std::string& at,
                            Biases biases, bool fused) {
  const int64_t inter = c.intermediate_size;
  const std::string mlp = at + "mlp.";
  using Parts = std::vector<WeightLoader::Part>;
  gate_up = w.linear("mlp",
                     fused ? Parts{{mlp + "gate_up_proj", 2 * inter}}
                           : Parts{{mlp + "gate_proj", inter}, {mlp + "up_proj", inter}},
                     c.hidden_size, biases.mlp);
  down = w.linear("mlp", {{mlp + "down_proj", c.hidden_size}}, inter, biases.mlp);
}

}  // namespace stet
