// ggml's blocks of weights, as GGUF files have them, in the layouts of the kernels (kernels.hpp).
#pragma once

#include <cstddef>

#include "stet/files/tensor.hpp"

namespace stet {

// 16 rows of blocks, `columns` weights each, to the packed block of Matrix. A null row is zeros.
// Numbers stay what they are; no bit of them is computed.
void pack_blocks(DType dtype, const std::byte* const rows[], size_t columns, std::byte* out);

}  // namespace stet
