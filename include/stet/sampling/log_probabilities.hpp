// Log-probabilities of several tokens by the logits of one position.
#pragma once

#include <cstdint>
#include <span>

#include "stet/api.h"

namespace stet {

// Writes what log_probability() (sampler.hpp) gives for each of `ids` to `out`, as many. Returns
// the likeliest token of all, of equals the lowest id.
STET_API int32_t log_probabilities(std::span<const float> logits, std::span<const int32_t> ids,
                                   std::span<double> out);

}  // namespace stet
