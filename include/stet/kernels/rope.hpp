// Rotary position embedding (Su et al., arXiv 2104.09864): the angles of a position.
#pragma once

#include <cstdint>
#include <span>

#include "stet/api.h"

namespace stet {

// cos[i] and sin[i] of the angle float32(position) x frequencies[i], rounded to float32 before and
// after: what the keys and queries of that position are rotated by.
STET_API void rope_angles(int64_t position, std::span<const float> frequencies, float* cos,
                          float* sin);
// The same with the sines negated: the rotation back.
STET_API void rope_angles_back(int64_t position, std::span<const float> frequencies, float* cos,
                               float* sin);

}  // namespace stet
