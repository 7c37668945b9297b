// Poly1305 of our own: for builds without libcrypto, and where that has been told to do without it.
#pragma once

#include "stet/base/poly1305.hpp"

namespace stet {

// What poly1305_of gives.
Poly1305Tag portable_poly1305_of(std::span<const std::byte, 32> key,
                                 std::span<const std::byte> message);

}  // namespace stet
