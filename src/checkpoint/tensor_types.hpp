// The name of the contract ggml: which tensors have which types.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "stet/kernels/kernels.hpp"

namespace stet {

// "ggml(*=q4_k,attn_v=q6_k,blk.3.ffn_down=q6_k)", as include/stet/model/contract.hpp writes it, of
// the tensors that linear layers, embeddings and head consist of, by their canonical published
// names ("layers.3.mlp.down_proj.weight"). Tensors are called as in GGUF files. `*` is the type that most
// of them have (the first in the order of WeightType among equals); a kind whose tensors have one
// other type in all layers is one entry, others are an entry each. A list that is longer than a
// name may be is "ggml(*=sha256-...)", of its text.
std::string types_text(std::vector<std::pair<std::string, WeightType>> types);

}  // namespace stet
