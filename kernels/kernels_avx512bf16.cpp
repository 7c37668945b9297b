// The kernel table for AVX-512 with BF16.
#include <immintrin.h>
#include "kernels/fetching.hpp"
#include "kernels/tables.hpp"
#include "stet/kernels/kernels.hpp"

namespace stet {
namespace {
#include "kernels/simd_avx512.inc"

#include "kernels/products.inc"

#include "kernels/pairs.inc"
}  // namespace

Kernels kernels_avx512bf16(const Kernels& avx512vnni) {
  Kernels table = avx512vnni;
  table.name = "avx512bf16";
  put_pairs(table);
  return table;
}

}  // namespace stet
