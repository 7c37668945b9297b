// The counter-based generator Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers:
// as easy as 1, 2, 3", SC 2011). It is a pure function of counter and key, so random numbers for
// any token position need no history.
#pragma once

#include <array>
#include <cstdint>

#include "stet/api.h"

namespace stet {

STET_API std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                            std::array<uint32_t, 2> key);

// Returns a number in [0, 1) with 53 random bits. The counter is {position low, position high, 0,
// 0}, the key {seed low, seed high}. The result is the upper 53 bits of w1 * 2^32 + w0, times
// 2^-53, where w0 and w1 are the first output words.
STET_API double philox_uniform(uint64_t seed, uint64_t position);

}  // namespace stet
