// OpenBLAS, loaded when it is first asked for: it starts threads and takes memory as soon as it is
// there, and only the contract f32_blas has any use for it.
#pragma once

#include <cstddef>

namespace stet {

// Whether this build can load it (load_openblas() of product.hpp). A static one cannot.
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
// c = a b + keep c: a is [rows][depth], b [depth][columns], c [rows][columns]. After
// load_openblas().
void openblas_multiply(BlasMatrix<const float> a, BlasMatrix<const float> b, BlasMatrix<float> c,
                       const BlasShape& shape, float keep);

}  // namespace stet
