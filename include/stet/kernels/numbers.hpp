// Single numbers: in fewer bits, and what little else is computed outside of the kernel table.
// Everything here is compiled under the contract's flags, whatever those of the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "stet/api.h"

namespace stet {

// These are exact.
STET_API float widen_bf16(uint16_t bits);
STET_API float widen_f16(uint16_t bits);
// These round to nearest, ties to even; NaN stays NaN, overflow becomes infinity.
STET_API uint16_t round_bf16(float x);
STET_API uint16_t round_f16(float x);

// The first that is infinite or not a number.
STET_API std::optional<size_t> find_not_finite(std::span<const float> x);

// 1 / sqrt(x) and sqrt(x), each operation rounded once: how scores and embeddings are scaled.
STET_API double inverse_square_root(double x);
STET_API float square_root(float x);

// x[i] *= by[i], as many.
STET_API void multiply(std::span<float> x, std::span<const float> by);

// x[i] += offset: norm weights that a checkpoint stores less 1.
STET_API void add_offset(std::span<float> x, float offset);

}  // namespace stet
