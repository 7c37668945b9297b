// Kernel tables that take most of their kernels from another table.
#pragma once

namespace stet {

struct Kernels;

// Returns the AVX-512 table with VNNI integer products.
Kernels kernels_avx512vnni(const Kernels& avx512);
// Returns the VNNI table with BF16 products.
Kernels kernels_avx512bf16(const Kernels& avx512vnni);

}  // namespace stet
