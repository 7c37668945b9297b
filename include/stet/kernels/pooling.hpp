// Rows of hidden states made one embedding, compiled under the contract's flags. The order of every
// sum is fixed, so that no result depends on threads, chunks or instruction sets.
#pragma once

#include <cstddef>

#include "stet/api.h"

namespace stet {

// sum[i] += row[i], in double: a chain over the rows in the order of the calls.
STET_API void add_row(const float* row, double* sum, size_t n);
// mean[i] = sum[i] / rows, in double, rounded once.
STET_API void mean_of_rows(const double* sum, size_t rows, float* mean, size_t n);
// x[i] = x[i] / length, in double, rounded once; length = sqrt(sum of x[i]^2). Sum, in double: 16
// lanes, lane i is a chain over x[i], x[i+16], ...; then a tree: lane i += lane i+8, i+4, i+2, i+1.
// Zeros stay zeros. x: finite.
STET_API void make_unit_length(float* x, size_t n);

}  // namespace stet
