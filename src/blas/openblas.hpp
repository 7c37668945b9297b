// Loads OpenBLAS at its first use: it starts threads and takes memory at once, and only the
// contract f32_blas needs it.
#pragma once

#include <cstddef>

namespace stet {

// Returns whether this build can load it (load_openblas() of product.hpp). A static build cannot.
bool have_blas();

// A row-major matrix of float32: rows are `stride` apart.
template <class T>
struct BlasMatrix {
  T* data;
  size_t stride;
};
struct BlasShape {
  size_t rows, columns, depth;
};
// Computes c = a b + keep c, with a [rows][depth], b [depth][columns] and c [rows][columns].
// Requires load_openblas().
void openblas_multiply(BlasMatrix<const float> a, BlasMatrix<const float> b, BlasMatrix<float> c,
                       const BlasShape& shape, float keep);

}  // namespace stet
