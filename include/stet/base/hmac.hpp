// HMAC-SHA256 (RFC 2104): what shows that somebody who holds a key has made some bytes.
#pragma once

#include <cstddef>
#include <span>

#include "stet/api.h"
#include "stet/base/sha256.hpp"

namespace stet {

// A key of more than 64 bytes counts as its SHA-256.
STET_API Sha256 hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message);
// Takes as long for bytes that differ early as for those that differ late; bytes of other numbers
// are not equal.
STET_API bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);

}  // namespace stet
