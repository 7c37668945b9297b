// The kernel table for NEON, which every AArch64 CPU has.
#include <arm_neon.h>
#include "kernels/fetching.hpp"
#include "stet/kernels/kernels.hpp"

namespace stet {
namespace {
#include "kernels/simd_neon.inc"

#include "kernels/kernels.inc"
}  // namespace

constinit const Kernels kernels_neon = table_of("neon");

}  // namespace stet
