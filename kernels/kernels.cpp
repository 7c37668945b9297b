// Selects a kernel table for this CPU, and sets the floating-point environment.
#include "stet/kernels/kernels.hpp"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "kernels/fetching.hpp"
#include "kernels/processor.hpp"
#include "kernels/tables.hpp"

namespace stet {
namespace {

#if defined(__x86_64__)
// clang 14 has no name for F16C. The result is cached because CPUID takes microseconds in a virtual
// machine.
bool have_f16c() {
  static const bool have = [] {
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
  }();
  return have;
}
#endif

[[maybe_unused]] bool have_avx2() {
#if defined(__x86_64__)
  return have_f16c() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

[[maybe_unused]] bool have_avx512() {
#if defined(__x86_64__)
  return have_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

[[maybe_unused]] bool have_avx512vnni() {
#if defined(__x86_64__)
  return have_avx512() && __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

[[maybe_unused]] bool have_avx512bf16() {
#if defined(__x86_64__)
  return have_avx512vnni() && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

[[maybe_unused]] bool have_neondot() {
#if defined(__aarch64__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return false;
#endif
}

[[maybe_unused]] bool have_neonbf16() {
#if defined(__aarch64__)
  return have_neondot() && (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
#else
  return false;
#endif
}

#if defined(STET_KERNELS_AVX512BF16)
Processor this_processor() {
  unsigned a, b = 0, c = 0, d = 0;
  Processor found = {};
  if (__get_cpuid(0, &a, &b, &c, &d)) found.intel = b == signature_INTEL_ebx;
  if (__get_cpuid(1, &a, &b, &c, &d)) {
    const unsigned family = a >> 8 & 15, model = a >> 4 & 15;
    found.family = static_cast<int>(family == 15 ? family + (a >> 20 & 255) : family);
    found.model = static_cast<int>(family == 6 || family == 15 ? model | (a >> 12 & 0xF0) : model);
  }
  return found;
}
#endif

// These functions run code of their instruction set. Callers must check the CPU first.
#if defined(STET_KERNELS_AVX512VNNI)
const Kernels& avx512vnni_table() {
  static const Kernels table = kernels_avx512vnni(kernels_avx512);
  return table;
}
#endif
#if defined(STET_KERNELS_AVX512BF16)
const Kernels& avx512bf16_table() {
  static const Kernels table = [] {
    Kernels made = kernels_avx512bf16(avx512vnni_table());
    if (!reads_prompts_by_fma(this_processor())) {
      made.pack_rounded = nullptr;
      made.tile_flushed = nullptr;
    }
    return made;
  }();
  return table;
}
#endif
#if defined(STET_KERNELS_NEONDOT)
const Kernels& neondot_table() {
  static const Kernels table = kernels_neondot(kernels_neon);
  return table;
}
#endif
#if defined(STET_KERNELS_NEONBF16)
const Kernels& neonbf16_table() {
  static const Kernels table = kernels_neonbf16(neondot_table());
  return table;
}
#endif

}  // namespace

bool reads_prompts_by_fma(const Processor& processor) {
  if (!processor.intel || processor.family != 6) return false;
  switch (processor.model) {
    case 0x8F:  // Sapphire Rapids
    case 0xCF:  // Emerald Rapids
    case 0xAD:  // Granite Rapids
    case 0xAE:
      return true;
    default:
      return false;
  }
}

bool use_stream_prefetch() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}

bool use_burst_prefetch() {
#if defined(__x86_64__)
  static const bool are = __builtin_cpu_is("amdfam19h");
  return are;
#else
  return false;
#endif
}

const Kernels* find_kernels(const char* name) {
  if (strcmp(name, "portable") == 0) return &kernels_portable;
#if defined(STET_KERNELS_AVX2)
  if (strcmp(name, "avx2") == 0 && have_avx2()) return &kernels_avx2;
#endif
#if defined(STET_KERNELS_AVX512)
  if (strcmp(name, "avx512") == 0 && have_avx512()) return &kernels_avx512;
#endif
#if defined(STET_KERNELS_AVX512VNNI)
  if (strcmp(name, "avx512vnni") == 0 && have_avx512vnni()) return &avx512vnni_table();
#endif
#if defined(STET_KERNELS_AVX512BF16)
  if (strcmp(name, "avx512bf16") == 0 && have_avx512bf16()) return &avx512bf16_table();
#endif
#if defined(STET_KERNELS_NEON)
  if (strcmp(name, "neon") == 0) return &kernels_neon;
#endif
#if defined(STET_KERNELS_NEONDOT)
  if (strcmp(name, "neondot") == 0 && have_neondot()) return &neondot_table();
#endif
#if defined(STET_KERNELS_NEONBF16)
  if (strcmp(name, "neonbf16") == 0 && have_neonbf16()) return &neonbf16_table();
#endif
  return nullptr;
}

const char* const* kernel_names() {
  static constexpr const char* kAll[] = {"portable",   "avx2", "avx512",  "avx512vnni",
                                         "avx512bf16", "neon", "neondot", "neonbf16"};
  struct Found {
    const char* names[sizeof kAll / sizeof *kAll + 1] = {};
    Found() {
      size_t n = 0;
      for (const char* name : kAll) {
        if (find_kernels(name) != nullptr) names[n++] = name;
      }
    }
  };
  static const Found found;
  return found.names;
}

const Kernels& best_kernels() {
  static const Kernels& best = []() -> const Kernels& {
    const char* const* name = kernel_names();
    while (name[1] != nullptr) ++name;
    return *find_kernels(*name);
  }();
  return best;
}

#if defined(__x86_64__)
// The x87 control word affects no computation here, but the C library reads its rounding mode when
// it parses decimals.
uint64_t enter_float_environment() {
  uint16_t x87;
  const uint16_t standard = 0x037F;
  const unsigned previous = __builtin_ia32_stmxcsr();
  __asm__ volatile("fnstcw %0" : "=m"(x87));
  __asm__ volatile("fldcw %0" : : "m"(standard));
  __builtin_ia32_ldmxcsr(0x1F80);
  return uint64_t{x87} << 32 | previous;
}
void leave_float_environment(uint64_t previous) {
  const uint16_t x87 = static_cast<uint16_t>(previous >> 32);
  __asm__ volatile("fldcw %0" : : "m"(x87));
  __builtin_ia32_ldmxcsr(static_cast<unsigned>(previous));
}
#elif defined(__aarch64__)
uint64_t enter_float_environment() {
  uint64_t previous;
  __asm__ volatile("mrs %0, fpcr" : "=r"(previous));
  __asm__ volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
  return previous;
}
void leave_float_environment(uint64_t previous) {
  __asm__ volatile("msr fpcr, %0" : : "r"(previous));
}
#else
uint64_t enter_float_environment() { return 0; }
void leave_float_environment(uint64_t) {}
#endif

}  // namespace stet
