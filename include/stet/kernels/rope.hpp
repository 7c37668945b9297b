// Rotary position embedding (Su et al., arXiv 2104.09864): the rotation angles of a position.
#pragma once

#include <cstdint>
#include <span>

#include "stet/api.h"

namespace stet {

// Computes cosine and sine of the angle float32(position) x frequencies[i], which rotates keys and
// queries of that position. Rounds to float32 before and after.
STET_API void rope_angles(int64_t position, std::span<const float> frequencies, float* cos,
                          float* sin);
// Like rope_angles(), with negated sines: the inverse rotation.
STET_API void rope_angles_back(int64_t position, std::span<const float> frequencies, float* cos,
                               float* sin);

}  // namespace stet
