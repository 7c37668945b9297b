// The counter-based generator Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers:
// as easy as 1, 2, 3", SC 2011): a pure function of counter and key, so that the randomness of any
// token position can be had without the history before it.
#pragma once

#include <array>
#include <cstdint>

#include "stet/api.h"

namespace stet {

STET_API std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                            std::array<uint32_t, 2> key);

// A number in [0, 1) with 53 random bits: counter {position low, position high, 0, 0}, key {seed
// low, seed high}; of the words w0, w1 that come out, the upper 53 bits of w1 * 2^32 + w0, times
// 2^-53.
STET_API double philox_uniform(uint64_t seed, uint64_t position);

}  // namespace stet
