// Multiplies matrices by OpenBLAS.
#include <algorithm>
#include <cstring>

#include "src/blas/openblas.hpp"
#include "stet/model/product.hpp"

namespace stet {

using namespace detail;

// Each thread multiplies its own outputs, since OpenBLAS's threads would compete with the team's.
void gemm_blas(Team t, const Pass& p, const Matrix& w, Rows x, Rows y) {
  float* const wide = p.scratch->local[static_cast<size_t>(t.rank)].as<float>();
  float* const panel = wide + kBlasFloats;
  const size_t depth = w.depth(), step = piece_depth(depth, kGemmDepth, widened_unit(w));
  t.each((w.blocks() + kBlasBlocks - 1) / kBlasBlocks, [&](size_t group) {
    const size_t b = group * kBlasBlocks, blocks = std::min(kBlasBlocks, w.blocks() - b),
                 outputs = blocks * kLanes;
    for (size_t k0 = 0; k0 < depth; k0 += step) {
      const size_t kc = std::min(step, depth - k0);
      for (size_t i = 0; i < blocks; i += kPanelBlocks) {
        const size_t n = std::min(kPanelBlocks, blocks - i);
        widen_panel(*p.kernels, {&w, b + i, n}, k0, kc, panel);
        for (size_t k = 0; k < kc;
             ++k) {  // out of chain order: (1, 0, 3, 2, ...) -> (0, 1, 2, 3, ...)
          std::memcpy(wide + k * outputs + i * kLanes, panel + (k ^ 1) * kPanel,
                      n * kLanes * sizeof(float));
        }
      }
      openblas_multiply({x.data + k0, x.stride}, {wide, outputs}, {y.data + b * kLanes, y.stride},
                        {x.count, outputs, kc}, k0 == 0 ? 0.0f : 1.0f);
    }
  });
}

}  // namespace stet
