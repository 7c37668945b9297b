// The kernel table for NEON with dot products of four bytes.
#include <arm_neon.h>
#include "kernels/fetching.hpp"
#include "kernels/tables.hpp"
#include "stet/kernels/kernels.hpp"

namespace stet {
namespace {
#include "kernels/simd_neon.inc"

#include "kernels/products.inc"

#include "kernels/quants.inc"

#include "kernels/kquants.inc"

#include "kernels/mxfp4.inc"
}  // namespace

Kernels kernels_neondot(const Kernels& neon) {
  Kernels table = neon;
  table.name = "neondot";
  put_quant_products(table);
  put_super_products(table);
  put_mxfp4_products(table);
  return table;
}

}  // namespace stet
