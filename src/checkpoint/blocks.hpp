// Repacks ggml's blocks of weights, as GGUF files store them, into the kernels' layouts
// (kernels.hpp).
#pragma once

#include <cstddef>

#include "stet/files/tensor.hpp"

namespace stet {

// Packs 16 rows, each of `columns` weights in ggml blocks, into one packed block of a Matrix. A
// null row packs as zeros. Only the order of bytes changes; no number is computed.
void pack_blocks(DType dtype, const std::byte* const rows[], size_t columns, std::byte* out);

}  // namespace stet
