// Selects the SHA-256 instructions of this CPU.
#include "kernels/sha256.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace stet {

#if defined(__x86_64__)

extern const Sha256Kernel kSha256Ni;

namespace {

bool have_sha() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kSha = 1u << 29;  // bit of EBX
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & kSha) != 0 &&
         __builtin_cpu_supports("sse4.1");
}

}  // namespace

const Sha256Kernel* sha256_kernel() {
  static const Sha256Kernel* const found = have_sha() ? &kSha256Ni : nullptr;
  return found;
}

#else

const Sha256Kernel* sha256_kernel() { return nullptr; }

#endif

}  // namespace stet
