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

// The inverse for F32, F16, BF16, Q8_0, Q4_0 and the K types from Q4_K on, as quantize_row_*_ref
// rounds:
//   F16, BF16  to nearest, ties to even
//   Q8_0       d = max |x| / 127, and round(x (1 / d)), halves away from zero
//   Q4_0       d = m / -8 for the x of largest magnitude m, and min(15, floor(x (1 / d) + 8.5))
//   K types    by a search (kernels/quantize_super.cpp); errors weigh by `importance`, a positive
//              number for each element, where that is not null
// d is stored as float16, and not what x is divided by. Values must be finite, and below what
// ggml_limit() says.
STET_API void quantize_ggml(uint32_t type, const float* from, size_t blocks, void* to,
                            const float* importance = nullptr);
// The magnitude from which on values have no place in that type.
STET_API float ggml_limit(uint32_t type);

// 32 weights that have a scale already, as Q8_0, Q4_0 or Q5_0 stores them: weight i is (u[i] - 128)
// d, (u[i] - 8) d or (u[i] - 16) d. MXFP4: u[i] is its code, `scale` the exponent's byte.
STET_API void store_ggml_block(uint32_t type, uint16_t scale, const uint8_t* u, void* to);

}  // namespace stet
