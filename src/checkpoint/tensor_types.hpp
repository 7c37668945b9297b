// Writes the name of the ggml contract, which lists the types of tensors.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "stet/kernels/kernels.hpp"

namespace stet {

// Returns a name such as "ggml(*=q4_k,attn_v=q6_k,blk.3.ffn_down=q6_k)" (see
// include/stet/model/contract.hpp). `types` lists the tensors of linear layers, embeddings and head
// by their canonical published names ("layers.3.mlp.down_proj.weight"). The result calls tensors as
// GGUF files do. `*` stands for the commonest type; among equals the first in the order of
// WeightType. A kind of tensor that has one other type in all layers is one entry; otherwise each
// tensor is an entry. If the list exceeds the limit for names, the name is "ggml(*=sha256-...)",
// with the hash of the list.
std::string types_text(std::vector<std::pair<std::string, WeightType>> types);

}  // namespace stet
