// Log-probabilities of several tokens from the logits of one position.
#pragma once

#include <cstdint>
#include <span>

#include "stet/api.h"

namespace stet {

// Writes log_probability() (sampler.hpp) of each of `ids` to `out`, of the same size. Returns the
// most probable token of all; among equals the lowest id.
STET_API int32_t log_probabilities(std::span<const float> logits, std::span<const int32_t> ids,
                                   std::span<double> out);

}  // namespace stet
