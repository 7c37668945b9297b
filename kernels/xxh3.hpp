// XXH3. Long inputs are hashed by wider vectors than the baseline's, two to three times as fast and
// with equal digests.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stet {

struct Hash128 {
  uint64_t low, high;
};

// Returns XXH3-128 of the data, computed by the widest vectors of this CPU.
Hash128 xxh3_128(const void* data, size_t size);

// XXH3-128 of data that arrives in pieces.
struct Xxh3State;
Xxh3State* xxh3_begin();           // to be freed by xxh3_free()
void xxh3_free(Xxh3State* state);  // accepts null
void xxh3_update(Xxh3State& state, const void* data, size_t size);
Hash128 xxh3_digest(const Xxh3State& state);

// Returns XXH3-64 of short data, for tables of hashes.
uint64_t xxh3_64(const void* data, size_t size);

}  // namespace stet
