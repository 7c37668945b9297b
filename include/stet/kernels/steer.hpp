// Arithmetic of interventions (session/intervention.hpp): float32, one FMA chain in element order,
// so that no result depends on threads or instruction sets.
#pragma once

#include <cstddef>

#include "stet/api.h"

namespace stet {

// Computes x += a v by one FMA per element. An element whose a v is zero keeps its bits.
STET_API void steer_add(float* x, const float* v, float a, size_t n);
// Computes x *= a.
STET_API void steer_scale(float* x, float a, size_t n);
// Computes x -= ((x . u) / (u . u)) u. Does nothing if u is zero.
STET_API void steer_project_out(float* x, const float* u, size_t n);
// Sets a feature of a sparse autoencoder to `value`: `x += (value - f) decoder`.
// The feature is f = x . encoder + bias, or 0 if that is not above `threshold`.
STET_API void steer_clamp(float* x, const float* encoder, const float* decoder, float bias,
                          float threshold, float value, size_t n);

// Returns whether every a v is finite.
STET_API bool steer_products_finite(const float* v, float a, size_t n);
// Returns whether u . u is finite.
STET_API bool steer_length_finite(const float* u, size_t n);

}  // namespace stet
