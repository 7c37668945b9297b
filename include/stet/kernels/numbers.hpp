// Conversions of single numbers, and the few computations outside the kernel table. All of it is
// compiled under the contract's flags, whatever the caller's flags are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "stet/api.h"

namespace stet {

// Widen to float32, exactly.
STET_API float widen_bf16(uint16_t bits);
STET_API float widen_f16(uint16_t bits);
// Round to nearest, ties to even. NaN stays NaN; overflow becomes infinity.
STET_API uint16_t round_bf16(float x);
STET_API uint16_t round_f16(float x);

// Returns the index of the first number that is infinite or NaN.
STET_API std::optional<size_t> find_not_finite(std::span<const float> x);

// Return 1 / sqrt(x) and sqrt(x), each operation rounded once. Used to scale scores and embeddings.
STET_API double inverse_square_root(double x);
STET_API float square_root(float x);

// Returns n * factor in float64, without its fraction. Used for widths that a config multiplies.
STET_API int64_t multiplied(int64_t n, double factor);

// Computes x[i] *= by[i]. Both have the same size.
STET_API void multiply(std::span<float> x, std::span<const float> by);

// Computes x[i] = min(most, max(least, x[i])).
STET_API void limit(std::span<float> x, float least, float most);

// Computes x[i] += offset. Used for norm weights that a checkpoint stores minus 1.
STET_API void add_offset(std::span<float> x, float offset);

}  // namespace stet
