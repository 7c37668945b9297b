// The quantized types of GGUF files. The formulas follow ggml's block structs and its reference
// functions dequantize_row_* (ggml-common.h, ggml-quants.c). Each product and sum is rounded
// separately, in the reference's order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "stet/api.h"

namespace stet {

// The storage of a type: a block of `elements` elements takes `bytes` bytes.
struct GgmlType {
  const char* name;  // "Q4_K"
  size_t elements, bytes;
};
// Returns the storage of a type, by ggml's number, or nothing if stet does not read the type.
STET_API std::optional<GgmlType> ggml_type(uint32_t type);

// Converts `blocks` blocks of a type of ggml_type() to float32, exactly as the reference does.
STET_API void dequantize_ggml(uint32_t type, const void* from, size_t blocks, float* to);

// Converts float32 to F32, F16, BF16, Q8_0, Q4_0, MXFP4 or a K type from Q4_K on. Rounds as
// quantize_row_*_ref does:
//   F16, BF16  to nearest, ties to even
//   Q8_0       d = max |x| / 127, and round(x (1 / d)), halves away from zero
//   Q4_0       d = m / -8 for the x of largest magnitude m, and min(15, floor(x (1 / d) + 8.5))
//   MXFP4      exponent floor(log2(max |x|)) + 125 in 0..252, and the nearest code, ties to zero;
//              -0 keeps its sign, which the reference drops
//   K types    by a search (kernels/quantize_super.cpp); if `importance` is not null, it weights
//              the error of each element by a positive number
// d is stored as float16, but x is divided by the unrounded d. Values must be finite and below
// ggml_limit().
STET_API void quantize_ggml(uint32_t type, const float* from, size_t blocks, void* to,
                            const float* importance = nullptr);
// Returns the magnitude from which on values cannot be represented in the type.
STET_API float ggml_limit(uint32_t type);

// Writes 32 weights that already have a scale as a block of Q8_0, Q4_0, Q5_0 or MXFP4. In MXFP4,
// u[i] is the code of weight i and `scale` the byte of the exponent. In the others `scale` holds the
// float16 bits of d, and weight i is (u[i] - 128) d, (u[i] - 8) d or (u[i] - 16) d.
STET_API void store_ggml_block(uint32_t type, uint16_t scale, const uint8_t* u, void* to);

}  // namespace stet
