// XXH3 by the widest vectors of this CPU (xxh3.hpp).
#include "kernels/xxh3.hpp"

#include <xxhash.h>

namespace stet {

Hash128 xxh3_128_avx2(const void* data, size_t size);
Hash128 xxh3_128_avx512(const void* data, size_t size);
void xxh3_update_avx2(void* state, const void* data, size_t size);
void xxh3_update_avx512(void* state, const void* data, size_t size);

namespace {

Hash128 baseline(const void* data, size_t size) {
  const XXH128_hash_t h = XXH3_128bits(data, size);
  return {h.low64, h.high64};
}

void baseline_update(void* state, const void* data, size_t size) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state), data, size);
}

struct Xxh3 {
  Hash128 (*hash)(const void*, size_t);
  void (*update)(void*, const void*, size_t);
};

const Xxh3& widest() {
  static const Xxh3 chosen = [] {
#if defined(STET_KERNELS_AVX512)
    if (__builtin_cpu_supports("avx512f")) return Xxh3{xxh3_128_avx512, xxh3_update_avx512};
#endif
#if defined(STET_KERNELS_AVX2)
    if (__builtin_cpu_supports("avx2")) return Xxh3{xxh3_128_avx2, xxh3_update_avx2};
#endif
    return Xxh3{baseline, baseline_update};
  }();
  return chosen;
}

}  // namespace

Hash128 xxh3_128(const void* data, size_t size) { return widest().hash(data, size); }

// The layout of an XXH3_state_t does not depend on the vectors.
struct Xxh3State {
  alignas(64) XXH3_state_t hash;
};

Xxh3State* xxh3_begin() {
  auto* const state = new Xxh3State;
  XXH3_128bits_reset(&state->hash);
  return state;
}

void xxh3_free(Xxh3State* state) { delete state; }

void xxh3_update(Xxh3State& state, const void* data, size_t size) {
  widest().update(&state.hash, data, size);
}

Hash128 xxh3_digest(const Xxh3State& state) {
  const XXH128_hash_t h = XXH3_128bits_digest(&state.hash);
  return {h.low64, h.high64};
}

uint64_t xxh3_64(const void* data, size_t size) { return XXH3_64bits(data, size); }

}  // namespace stet
