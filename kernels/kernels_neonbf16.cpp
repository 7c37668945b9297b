// The kernel table for NEON with products of bfloat16.
#include <arm_neon.h>
#include "kernels/fetching.hpp"
#include "kernels/tables.hpp"
#include "stet/kernels/kernels.hpp"

namespace stet {
namespace {
#include "kernels/simd_neon.inc"

#include "kernels/products.inc"

#include "kernels/pairs.inc"
}  // namespace

Kernels kernels_neonbf16(const Kernels& neondot) {
  Kernels table = neondot;
  table.name = "neonbf16";
  put_pairs(table);
  return table;
}

}  // namespace stet
