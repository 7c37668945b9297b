// The portable kernel table: the reference for all others.
#include "kernels/fetching.hpp"
#include "stet/kernels/kernels.hpp"

namespace stet {
namespace {
#include "kernels/simd_portable.inc"

#include "kernels/kernels.inc"
}  // namespace

constinit const Kernels kernels_portable = table_of("portable");

}  // namespace stet
