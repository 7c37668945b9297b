// The matrix-matrix product, and the sizes of the scratch memory that ops use.
#pragma once

#include "stet/ops.hpp"

namespace stet {

// Rows are taken in blocks that stay in the second-level cache beside a panel of weights.
constexpr size_t kGemmRows =
    516;  // a multiple of kTileRows; one block for the default chunk of 512
constexpr size_t kGemmDepth = 640;  // inputs of a panel that are widened at once

// y = f(gate) up
inline auto gate_kernel(const Kernels& k, Gate gate) {
  return gate == Gate::silu ? k.silu_mul : k.gelu_tanh_mul;
}

size_t gemm_local_floats();
size_t attention_local_floats(size_t head_dim);
size_t attention_partial_floats(size_t heads, size_t kv_heads,
                                size_t head_dim);  // for each block of a cache

void gemm(Team t, const Pass& p, const Matrix& w, Rows x, Rows y);
// linear_gated() of a matrix whose half is a multiple of kLanes: gates go no further than the
// first-level cache.
void gemm_gated(Team t, const Pass& p, const Matrix& w, Gate gate, Rows x, Rows y);
// Widens panels to float32 and hands them to OpenBLAS, which has been loaded (load_openblas).
void gemm_blas(Team t, const Pass& p, const Matrix& w, Rows x, Rows y);

}  // namespace stet
