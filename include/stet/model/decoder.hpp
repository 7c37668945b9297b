// What the decoders after GPT-2 share: the ends of the model, the linear layers of a layer and
// their names, and the attention between them. The forward pass itself stands in each family's
// file.
#pragma once

#include <string>
#include <vector>

#include "stet/model/attention_capture.hpp"
#include "stet/model/family.hpp"

namespace stet {

// Queries, keys and values: columns of what one linear layer gives for all three.
struct Qkv {
  Qkv(const ModelConfig& c, Rows qkv);

  Rows q, k, v;  // [heads head_dim], [kv_heads head_dim] twice
};

// RoPE: rotates the queries and keys of layer `index` by their positions, where it has any.
void rotate(Team t, const Pass& p, const ModelConfig& c, size_t index, const Qkv& x);
// Stores keys and values of layer `index` in the KV cache; y = attention of its queries over all
// that is there then.
void attend(Team t, const Pass& p, const ModelConfig& c, size_t index, const Qkv& x, Rows y);

// Which linear layers have biases.
struct Biases {
  bool qkv = false, o = false, mlp = false;
};

// The linear layers of layer `at` ("layers.0."), under the names that Llama gave them. `fused`:
// with qkv_proj in place of three tensors, and gate_up_proj in place of two, as Phi-3 has them.
struct LinearLayers {
  LinearLayers(WeightLoader& w, const ModelConfig& c, const std::string& at, Biases biases = {},
               bool fused = false);

  Linear qkv;      // [(heads + 2 kv_heads) head_dim][hidden]
  Linear o;        // [hidden][heads head_dim]
  Linear gate_up;  // [2 intermediate][hidden]
  Linear down;     // [hidden][intermediate]
};

// Embeddings, final norm, head and rotary frequencies; a family adds its layers and its forward
// pass.
class Decoder : public Model {
 public:
  FinalNorm final_norm() const override { return {&final_norm_, nullptr}; }

 protected:
  // Norm weights are stored less `norm_offset`.
  Decoder(ModelConfig config, WeightLoader& w, float norm_offset);
  // f("layers.0."), f("layers.1."), ... for every layer.
  template <class F>
  void each_layer(F f) const {
    for (int64_t i = 0; i < config_.layers; ++i) f("layers." + std::to_string(i) + ".");
  }

  Vector final_norm_;
  std::vector<Frequencies> frequencies_;
};

// The points of what one linear layer gave for all three.
inline void point(Team t, const Pass& p, size_t index, const Qkv& x) {
  if (p.hooks == nullptr) return;
  point(t, p, Point::q, index, x.q);
  point(t, p, Point::k, index, x.k);
  point(t, p, Point::v, index, x.v);
}

inline Qkv::Qkv(const ModelConfig& c, Rows qkv) {
  const size_t queries = static_cast<size_t>(c.heads * c.head_dim),
               keys = static_cast<size_t>(c.kv_heads * c.head_dim);
  q = qkv.columns(0, queries);
  k = qkv.columns(queries, keys);
  v = qkv.columns(queries + keys, keys);
}

inline void rotate(Team t, const Pass& p, const ModelConfig& c, size_t index, const Qkv& x) {
  if (c.rope_of[index] >= 0) {
    rope(t, p, c.rope_of[index], x.q, static_cast<size_t>(c.head_dim));
    rope(t, p, c.rope_of[index], x.k, static_cast<size_t>(c.head_dim));
  }
  point(t, p, Point::rot_q, index, x.q);
  point(t, p, Point::rot_k, index, x.k);
}

inline void attend(Team t, const Pass& p, const ModelConfig& c, size_t index, const Qkv& x,
                   Rows y) {
  const AttentionShape shape = {static_cast<int64_t>(index),
                                static_cast<size_t>(c.heads),
                                static_cast<size_t>(c.kv_heads),
                                static_cast<size_t>(c.head_dim),
                                c.window[index],
                                c.attention_scale,
                                c.attention_softcap};
  store_kv(t, p, shape.layer, x.k, x.v);
  attention(t, p, shape, x.q, y);
  if (p.hooks != nullptr) {
    change_attention(t, p, shape, x.q, y);
    capture_attention(t, p, shape, x.q);
  }
  point(t, p, Point::z, index, y);
}

inline LinearLayers::LinearLayers(WeightLoader& w, const ModelConfig& c, const std::string& at,
                                  Biases biases, bool fused) {
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim, inter = c.intermediate_size;
  const std::string self = at + "self_attn.", mlp = at + "mlp.";
  using Parts = std::vector<WeightLoader::Part>;
  qkv = w.linear("attention",
                 fused ? Parts{{self + "qkv_proj", q + 2 * kv}}
                       : Parts{{self + "q_proj", q}, {self + "k_proj", kv}, {self + "v_proj", kv}},
                 c.hidden_size, biases.qkv);
  o = w.linear("attention", {{self + "o_proj", c.hidden_size}}, q, biases.o);
  gate_up = w.linear("mlp",
                     fused ? Parts{{mlp + "gate_up_proj", 2 * inter}}
                           : Parts{{mlp + "gate_proj", inter}, {mlp + "up_proj", inter}},
                     c.hidden_size, biases.mlp);
  down = w.linear("mlp", {{mlp + "down_proj", c.hidden_size}}, inter, biases.mlp);
}

inline Decoder::Decoder(ModelConfig config, WeightLoader& w, float norm_offset)
    : Model(std::move(config)) {
  const ModelConfig& c = config_;
  embedding_ = w.matrix("embeddings", {{"embed_tokens.weight", c.vocab_size}}, c.hidden_size);
  final_norm_ = w.vector("norms", "norm.weight", c.hidden_size, norm_offset);
  if (!c.tied_head) head_ = w.head(c.vocab_size, c.hidden_size);
  for (const Rope& rope : c.ropes)
    frequencies_.push_back({inverse_frequencies(rope, c.rotated()), rope_magnitude(rope)});
}

}  // namespace stet
