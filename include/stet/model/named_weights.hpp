// The weights of a model under the names and in the shapes that TransformerLens gave them.
//
//   embed.W_E [vocab][hidden], scaled as the family scales embeddings; pos_embed.W_pos
//   blocks.N.attn.W_Q, W_K, W_V [heads][hidden][head_dim] and b_Q, b_K, b_V [heads][head_dim], of
//   keys and values those of the kv heads; W_O [heads][head_dim][hidden], b_O [hidden]
//   blocks.N.mlp.W_in, W_gate [hidden][intermediate], W_out [intermediate][hidden], b_in, b_out
//   blocks.N.ln1.w, ln1.b, ln2..., and behind attention and MLP ln1_post.w, ln2_post.w
//   ln_final.w, ln_final.b, unembed.W_U [hidden][vocab]
//
// A tensor that has no such name keeps its own, and its shape.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/model/model.hpp"

namespace stet {

struct NamedWeight {
  std::string name;
  std::vector<int64_t> shape;
};
// In the order in which they are used; the head last, also where it is the embedding's.
STET_API std::vector<NamedWeight> named_weights(const Model& model);
// The numbers that the model multiplies with, widened to float32, row after row. Throws an argument
// Error for a name that named_weights() does not give.
STET_API std::shared_ptr<const std::vector<float>> load_named_weight(const Model& model,
                                                                     const std::string& name,
                                                                     int threads = 0);

}  // namespace stet
