// What interventions compute (session/intervention.hpp): float32, one FMA chain in the order of the
// elements, so that no result depends on threads or instruction sets.
#pragma once

#include <cstddef>

#include "stet/api.h"

namespace stet {

// x += a v, each by one FMA; an element whose a v is zero stays as it is.
STET_API void steer_add(float* x, const float* v, float a, size_t n);
// x *= a.
STET_API void steer_scale(float* x, float a, size_t n);
// x -= ((x . u) / (u . u)) u; nothing for a u of zeros.
STET_API void steer_project_out(float* x, const float* u, size_t n);
// A feature of a sparse autoencoder: f = x . encoder + bias, or 0 where that is not above
// `threshold`; x += (value - f) decoder.
STET_API void steer_clamp(float* x, const float* encoder, const float* decoder, float bias,
                          float threshold, float value, size_t n);

}  // namespace stet
