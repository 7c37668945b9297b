// The kernel table for AVX-512 with VNNI.
#include <immintrin.h>
#include "kernels/fetching.hpp"
#include "kernels/tables.hpp"
#include "stet/kernels/kernels.hpp"

namespace stet {
namespace {
#include "kernels/simd_avx512.inc"

#include "kernels/products.inc"

#include "kernels/quants.inc"

#include "kernels/kquants.inc"

#include "kernels/mxfp4.inc"
}  // namespace

Kernels kernels_avx512vnni(const Kernels& avx512) {
  Kernels table = avx512;
  table.name = "avx512vnni";
  put_quant_products(table);
  put_super_products(table);
  put_mxfp4_products(table);
  return table;
}

}  // namespace stet
