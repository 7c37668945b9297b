// The weights of a model under TransformerLens's names and in its shapes.
//
//   embed.W_E [vocab][hidden], scaled as the family scales embeddings; pos_embed.W_pos
//   blocks.N.attn.W_Q, W_K, W_V [heads][hidden][head_dim] and b_Q, b_K, b_V [heads][head_dim]; keys
//     and values have the KV heads; W_O [heads][head_dim][hidden], b_O [hidden]
//   blocks.N.mlp.W_in, W_gate [hidden][intermediate], W_out [intermediate][hidden], b_in, b_out
//   blocks.N.ln1.w, ln1.b, ln2..., and after attention and MLP ln1_post.w, ln2_post.w
//   ln_final.w, ln_final.b, unembed.W_U [hidden][vocab]
//
// Tensors without such a name keep their own name and shape.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/model/model.hpp"

namespace stet {

// A weight's name and shape.
struct NamedWeight {
  std::string name;
  std::vector<int64_t> shape;
};
// Returns all weights in order of use. The head is last, even if it is tied to the embedding.
STET_API std::vector<NamedWeight> named_weights(const Model& model);
// Returns the values that the model multiplies with, widened to float32, in row-major order. Throws
// an argument Error if named_weights() does not list the name.
STET_API std::shared_ptr<const std::vector<float>> load_named_weight(const Model& model,
                                                                     const std::string& name,
                                                                     int threads = 0);

}  // namespace stet
