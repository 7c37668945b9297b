// SHA-256 by the SHA extensions of x86 (Intel 64 and IA-32 Architectures Software Developer's
// Manual, volume 2: SHA256RNDS2, SHA256MSG1, SHA256MSG2).
#include <immintrin.h>

#include "kernels/sha256.hpp"

namespace stet {
namespace {

__m128i load(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }
void store(void* at, __m128i x) { _mm_storeu_si128(static_cast<__m128i*>(at), x); }

// The state in the form that the instructions use: a, b, e, f and c, d, g, h, the first in the
// highest word.
struct Halves {
  __m128i abef, cdgh;
};

Halves load_state(const uint32_t* state) {
  const __m128i cdab = _mm_shuffle_epi32(load(state), 0xB1),
                efgh = _mm_shuffle_epi32(load(state + 4), 0x1B);
  return {_mm_alignr_epi8(cdab, efgh, 8), _mm_blend_epi16(efgh, cdab, 0xF0)};
}

void store_state(uint32_t* state, Halves s) {
  const __m128i feba = _mm_shuffle_epi32(s.abef, 0x1B), dchg = _mm_shuffle_epi32(s.cdgh, 0xB1);
  store(state, _mm_blend_epi16(feba, dchg, 0xF0));
  store(state + 4, _mm_alignr_epi8(dchg, feba, 8));
}

void compress(uint32_t* state, const std::byte* blocks, size_t count) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  Halves s = load_state(state);
  for (size_t block = 0; block < count; ++block) {
    const Halves before = s;
    __m128i w[4];  // the last sixteen words of the schedule, four per vector
    for (int i = 0; i < 4; ++i)
      w[i] = _mm_shuffle_epi8(load(blocks + 64 * block + 16 * i), big_endian);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const __m128i k = _mm_load_si128(reinterpret_cast<const __m128i*>(kSha256Constants + 4 * i)),
                    x = _mm_add_epi32(w[i % 4], k);
      s.cdgh = _mm_sha256rnds2_epu32(s.cdgh, s.abef, x);
      s.abef = _mm_sha256rnds2_epu32(s.abef, s.cdgh, _mm_shuffle_epi32(x, 0x0E));
      if (i >= 12) continue;
      const __m128i last = w[(i + 3) % 4],
                    seven = _mm_alignr_epi8(last, w[(i + 2) % 4], 4);  // W[t - 7]
      const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]), seven);
      w[i % 4] = _mm_sha256msg2_epu32(sum, last);
    }
    s.abef = _mm_add_epi32(s.abef, before.abef);
    s.cdgh = _mm_add_epi32(s.cdgh, before.cdgh);
  }
  store_state(state, s);
}

}  // namespace

extern const Sha256Kernel kSha256Ni;
const Sha256Kernel kSha256Ni = {compress};

}  // namespace stet
