// The kernel table for AVX-512.
#include <immintrin.h>
#include "kernels/fetching.hpp"
#include "stet/kernels/kernels.hpp"

namespace stet {
namespace {
#include "kernels/simd_avx512.inc"

#include "kernels/kernels.inc"
}  // namespace

constinit const Kernels kernels_avx512 = table_of("avx512");

}  // namespace stet
