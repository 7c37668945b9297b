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
  put_quants(table);
  put_supers(table);
  put_mxfp4(table);
  return table;
}

}  // namespace stet
