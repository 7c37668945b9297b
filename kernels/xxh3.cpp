#include "kernels/xxh3.hpp"

#include <xxhash.h>

namespace stet {

Hash128 xxh3_128_avx2(const void* data, size_t size);
Hash128 xxh3_128_avx512(const void* data, size_t size);

namespace {

Hash128 baseline(const void* data, size_t size) {
  const XXH128_hash_t h = XXH3_128bits(data, size);
  return {h.low64, h.high64};
}

using Hash = Hash128 (*)(const void*, size_t);

Hash choose() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return xxh3_128_avx512;
  if (__builtin_cpu_supports("avx2")) return xxh3_128_avx2;
#endif
  return baseline;
}

}  // namespace

Hash128 xxh3_128(const void* data, size_t size) {
  static const Hash hash = choose();
  return hash(data, size);
}

}  // namespace stet
