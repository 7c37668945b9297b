// Kernel tables that take most of their kernels from another table.
#pragma once

namespace stet {

struct Kernels;

// Returns the AVX-512 table with VNNI integer products.
Kernels kernels_avx512vnni(const Kernels& avx512);
// Returns the VNNI table with BF16 products.
Kernels kernels_avx512bf16(const Kernels& avx512vnni);
// Returns the NEON table with dot products of bytes, and that one with products of bfloat16.
Kernels kernels_neondot(const Kernels& neon);
Kernels kernels_neonbf16(const Kernels& neondot);

}  // namespace stet
