// XXH_INLINE_ALL makes every function of the header static, so that no AVX2 code of it can be
// linked elsewhere.
#define XXH_PREFETCH_DIST 2048  // bytes ahead: decode hashes mapped blocks that it then reads
#define XXH_VECTOR XXH_AVX2
#include <xxhash.h>

#include "kernels/xxh3.hpp"

namespace stet {

Hash128 xxh3_128_avx2(const void* data, size_t size);
Hash128 xxh3_128_avx2(const void* data, size_t size) {
  const XXH128_hash_t h = XXH3_128bits(data, size);
  return {h.low64, h.high64};
}

void xxh3_update_avx2(void* state, const void* data, size_t size);
void xxh3_update_avx2(void* state, const void* data, size_t size) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state), data, size);
}

}  // namespace stet
