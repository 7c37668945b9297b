// Poly1305 (RFC 8439, section 2.5): what shows that somebody who holds a key of a message's own has
// made that message. Checking it takes a fraction of the time of a hash.
//
//   tag = ((c_1 r^n + c_2 r^(n-1) + ... + c_n r) mod (2^130 - 5)) + s mod 2^128
//
// c_i: the message's i-th 16 bytes (the last may be fewer), little-endian, with a one behind them.
// r: the first half of the key without the bits that the RFC clears; s: the second half.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "stet/api.h"

namespace stet {

using Poly1305Tag = std::array<std::byte, 16>;

// Of bytes of any number and alignment, which it only reads. `key`: for ONE message only, since the
// tags of two under the same key give r away, and with it the tag of every other. Compare tags in
// constant time (hmac.hpp). Throws nothing but std::bad_alloc.
STET_API Poly1305Tag poly1305_of(std::span<const std::byte, 32> key,
                                 std::span<const std::byte> message);

}  // namespace stet
