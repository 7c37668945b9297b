// The tables that take most of their kernels from another one.
#pragma once

namespace stet {

struct Kernels;

// Returns the table of AVX-512 with integer products by VNNI.
Kernels kernels_avx512vnni(const Kernels& avx512);
// Returns the table of VNNI with products of bfloat16 by BF16.
Kernels kernels_avx512bf16(const Kernels& avx512vnni);

}  // namespace stet
