// stet's own Poly1305, for builds without libcrypto and for systems whose libcrypto lacks it.
#pragma once

#include "stet/base/poly1305.hpp"

namespace stet {

// Returns the same tag as poly1305_of.
Poly1305Tag portable_poly1305_of(std::span<const std::byte, 32> key,
                                 std::span<const std::byte> message);

}  // namespace stet
