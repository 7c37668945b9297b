// The kernel table for AVX2.
#include <immintrin.h>
#include "kernels/fetching.hpp"
#include "stet/kernels/kernels.hpp"

namespace stet {
namespace {
#include "kernels/simd_avx2.inc"

#include "kernels/kernels.inc"
}  // namespace

constinit const Kernels kernels_avx2 = table_of("avx2");

}  // namespace stet
