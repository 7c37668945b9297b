// Gemma 3n's arithmetic on residual streams and gates: float32, each operation rounded, so that no
// result depends on threads or instruction sets.
#pragma once

#include <cstddef>

#include "stet/api.h"

namespace stet {

// y *= target / max(own, sqrt(1e-5)), where both are root mean squares: that of y is `own`.
STET_API void rescale_stream(float* y, float target, float own, size_t n);
// y = x + the sum over j of weight[j] streams[j]. The sum begins at +0 and takes j in ascending
// order.
STET_API void mix_streams(const float* x, const float* const* streams, const float* weight,
                          size_t count, float* y, size_t n);
// y += (1 + weight) (x - active).
STET_API void correct_stream(const float* x, const float* active, float weight, float* y, size_t n);
// y = the mean of streams, added in their order.
STET_API void mean_of_streams(const float* const* streams, size_t count, float* y, size_t n);
// x = max(x - (mean + deviations * standard deviation), 0). Mean and standard deviation are those of
// the row; its sums use 16 lanes and a tree, as in layer_norm (kernels.hpp).
STET_API void drop_below(float* x, float deviations, size_t n);
// Returns x with the probability p, 0 < p < 1, that a standard normal variable is below it
// (Wichura, algorithm AS241).
STET_API double normal_quantile(double p);

}  // namespace stet
