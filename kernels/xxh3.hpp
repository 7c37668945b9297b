// XXH3-128 of long inputs in wider vectors than the baseline's. Digests are the same, two to three
// times as fast.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stet {

struct Hash128 {
  uint64_t low, high;
};

// Returns the digest, computed by the widest vectors of this CPU.
Hash128 xxh3_128(const void* data, size_t size);
// Like XXH3_128bits_update on an XXH3_state_t, whose layout does not depend on the vectors.
void xxh3_update(void* state, const void* data, size_t size);

}  // namespace stet
