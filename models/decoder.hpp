// What the decoders after GPT-2 share: the ends of the model, the linear layers of a layer and
// their names, and the attention between them. The forward pass itself stands in each family's
// file.
#pragma once

#include <string>
#include <vector>

#include "models/family.hpp"

namespace stet {

// Where a pass keeps what attention works on: columns of p.qkv.
struct Views {
  Views(const ModelConfig& c, const Pass& p);

  Rows q, k, v;  // [heads head_dim], [kv_heads head_dim] twice
};

// Rotary positions for the queries and keys of layer `index`.
void rotate(Team t, const Pass& p, const ModelConfig& c, size_t index, const Views& v);
// Stores keys and values of layer `index`; p.attention = what its queries see.
void attend(Team t, const Pass& p, const ModelConfig& c, size_t index, const Views& v);

// Which linear layers have biases.
struct Biases {
  bool qkv = false, o = false, mlp = false;
};

// The linear layers of layer `at` ("layers.0."), under the names that Llama gave them.
struct LinearLayers {
  LinearLayers(WeightLoader& w, const ModelConfig& c, const std::string& at, Biases biases = {});

  Linear qkv;      // [(heads + 2 kv_heads) head_dim][hidden]
  Linear o;        // [hidden][heads head_dim]
  Linear gate_up;  // [2 intermediate][hidden]
  Linear down;     // [hidden][intermediate]
};

// Embeddings, final norm, head and rotary frequencies; a family adds its layers and its forward
// pass.
class Decoder : public Model {
 protected:
  // Norm weights are stored less `norm_offset`.
  Decoder(ModelConfig config, WeightLoader& w, float norm_offset);
  // f("layers.0."), f("layers.1."), ... for every layer.
  template <class F>
  void each_layer(F f) const {
    for (int64_t i = 0; i < config_.layers; ++i) f("layers." + std::to_string(i) + ".");
  }

  Vector final_norm_;
  std::vector<Vector> frequencies_;
};

}  // namespace stet
