// Pooling of hidden states into one embedding, compiled under the contract's flags. The order of
// every sum is fixed, so no result depends on threads, chunks or instruction sets.
#pragma once

#include <cstddef>

#include "stet/api.h"

namespace stet {

// Adds row[n] to sum[n] in double. Over several calls, each sum is a chain in call order.
STET_API void add_row(const float* row, double* sum, size_t n);
// Computes mean[i] = sum[i] / rows in double, rounded once.
STET_API void mean_of_rows(const double* sum, size_t rows, float* mean, size_t n);
// Divides x by its length `sqrt(sum of x[i]^2)`, in double, rounded once. The sum uses 16 lanes in
// double: lane i is a chain over `x[i], x[i+16], ...`. Then a tree adds lanes i+8, i+4, i+2 and i+1
// to lane i. A zero vector stays zero. x must be finite.
STET_API void make_unit_length(float* x, size_t n);

}  // namespace stet
