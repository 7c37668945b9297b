// Poly1305 (RFC 8439, section 2.5), which proves that a holder of the message's own key made the
// message. Checking it takes a fraction of the time of a hash.
//
//   tag = ((c_1 r^n + c_2 r^(n-1) + ... + c_n r) mod (2^130 - 5)) + s mod 2^128
//
// c_i is the message's i-th group of 16 bytes (the last may have fewer), little-endian, followed by
// a one. r is the first half of the key without the bits that the RFC clears; s is the second half.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "stet/api.h"

namespace stet {

using Poly1305Tag = std::array<std::byte, 16>;

// Returns the tag of a message of any size and alignment. Use a key for ONE message only: two tags
// under the same key reveal r, and with it the tag of every other message. Compare tags in constant
// time (hmac.hpp). Throws only std::bad_alloc.
STET_API Poly1305Tag poly1305_of(std::span<const std::byte, 32> key,
                                 std::span<const std::byte> message);

}  // namespace stet
