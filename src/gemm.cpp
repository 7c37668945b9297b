#include "src/gemm.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#ifdef STET_HAVE_BLAS
#include <cblas.h>
#endif

namespace stet {
namespace {

constexpr size_t kPanelFloats = kGemmDepth * kPanel;
constexpr size_t kPanelBlocks = kPanel / kLanes;

// One panel of up to 64 outputs for a block of rows. The panel is widened a depth at a time and reused for all
// rows; between depths the sums wait in `sums`, so that each output stays one chain.
void panel_product(const Pass& p, const Matrix& w, size_t block, size_t blocks, Rows x, Rows y, float* local) {
  const Kernels& k = *p.kernels;
  const float* packed = p.scratch->packed.as<float>();
  float* panel = local;
  float* sums = local + kPanelFloats;
  const size_t depth = w.even_columns(), tiles = (x.count + kTileRows - 1) / kTileRows;
  for (size_t k0 = 0; k0 < depth; k0 += kGemmDepth) {
    const size_t kc = std::min(kGemmDepth, depth - k0);
    const bool first = k0 == 0, last = k0 + kc == depth;
    k.widen_panel[static_cast<int>(w.type())](w.block(block), blocks, depth, k0, kc, panel);
    for (size_t i = 0; i < tiles; ++i) {
      const size_t row = i * kTileRows;
      float* held = sums + row * kPanel;
      const float* from = first ? nullptr : held;
      float* to = last ? y.row(row) + block * kLanes : held;
      k.tile(packed + (k0 * tiles + i * kc) * kTileRows, panel, kc, from, kPanel, to,
             last ? y.stride : size_t{kPanel}, static_cast<int>(std::min(size_t{kTileRows}, x.count - row)),
             static_cast<int>(blocks));
    }
  }
}

// x packed for the tile kernel: [depth / kGemmDepth][tiles][kGemmDepth][kTileRows].
void pack(Team t, const Pass& p, size_t depth, Rows x) {
  float* packed = p.scratch->packed.as<float>();
  const size_t tiles = (x.count + kTileRows - 1) / kTileRows;
  const Range mine = t.share(tiles);
  for (size_t k0 = 0; k0 < depth; k0 += kGemmDepth) {
    const size_t kc = std::min(kGemmDepth, depth - k0);
    for (size_t i = mine.begin; i < mine.end; ++i) {
      const size_t row = i * kTileRows;
      p.kernels->pack_rows(x.row(row) + k0, x.stride, static_cast<int>(std::min(size_t{kTileRows}, x.count - row)),
                           kc, packed + (k0 * tiles + i * kc) * kTileRows);
    }
  }
  t.barrier();
}

}  // namespace

size_t gemm_local_floats() { return kPanelFloats + kGemmRows * kPanel; }

void gemm(Team t, const Pass& p, const Matrix& w, Rows x, Rows y) {
  float* local = p.scratch->local[static_cast<size_t>(t.rank)].as<float>();
  for (size_t row = 0; row < x.count; row += kGemmRows) {
    const size_t count = std::min(kGemmRows, x.count - row);
    pack(t, p, w.even_columns(), x.rows(row, count));
    const Range mine = t.share(w.blocks());
    for (size_t b = mine.begin; b < mine.end; b += kPanelBlocks) {
      panel_product(p, w, b, std::min(kPanelBlocks, mine.end - b), x.rows(row, count), y.rows(row, count), local);
    }
    t.barrier();
  }
}

#ifdef STET_HAVE_BLAS

bool have_blas() { return true; }

// Each thread multiplies its own outputs with a single-threaded call: OpenBLAS's own threads would compete with
// the team's. The shape of each call, and so its bits, depends on the number of threads.
void gemm_blas(Team t, const Pass& p, const Matrix& w, Rows x, Rows y) {
  constexpr size_t kBlocksAtOnce = 16;  // 256 outputs
  thread_local std::vector<float> wide, panel;
  const size_t depth = w.even_columns();
  wide.resize(kBlocksAtOnce * kLanes * depth);
  panel.resize(kPanel * depth);
  const Range mine = t.share(w.blocks());
  for (size_t b = mine.begin; b < mine.end; b += kBlocksAtOnce) {
    const size_t blocks = std::min(kBlocksAtOnce, mine.end - b), outputs = blocks * kLanes;
    for (size_t i = 0; i < blocks; i += kPanelBlocks) {
      const size_t n = std::min(kPanelBlocks, blocks - i);
      p.kernels->widen_panel[static_cast<int>(w.type())](w.block(b + i), n, depth, 0, depth, panel.data());
      for (size_t k = 0; k < depth; ++k) {  // out of chain order: (1, 0, 3, 2, ...) -> (0, 1, 2, 3, ...)
        std::memcpy(wide.data() + k * outputs + i * kLanes, panel.data() + (k ^ 1) * kPanel, n * kLanes * sizeof(float));
      }
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, static_cast<int>(x.count), static_cast<int>(outputs),
                static_cast<int>(depth), 1.0f, x.data, static_cast<int>(x.stride), wide.data(),
                static_cast<int>(outputs), 0.0f, y.data + b * kLanes, static_cast<int>(y.stride));
  }
  t.barrier();
}

#else

bool have_blas() { return false; }
void gemm_blas(Team t, const Pass& p, const Matrix& w, Rows x, Rows y) { gemm(t, p, w, x, y); }

#endif

}  // namespace stet
