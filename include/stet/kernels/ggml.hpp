// The quantized types of GGUF files, as numbers. Sources: ggml's block structs and its reference
// functions dequantize_row_* (ggml-common.h, ggml-quants.c), as facts; each product and sum is
// rounded by itself, in their order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "stet/api.h"

namespace stet {

// How a type is stored: so many elements in so many bytes.
struct GgmlType {
  const char* name;  // "Q4_K"
  size_t elements, bytes;
};
// Nothing for a type that stet does not read. `type` is ggml's number.
STET_API std::optional<GgmlType> ggml_type(uint32_t type);

// `blocks` blocks of a type of ggml_type() to float32, exactly as the reference does.
STET_API void dequantize_ggml(uint32_t type, const void* from, size_t blocks, float* to);

}  // namespace stet
