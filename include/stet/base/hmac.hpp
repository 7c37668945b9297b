// HMAC-SHA256 (RFC 2104), which proves that a holder of a key made a message.
#pragma once

#include <cstddef>
#include <span>

#include "stet/api.h"
#include "stet/base/sha256.hpp"

namespace stet {

// Returns the HMAC. A key of more than 64 bytes is replaced by its SHA-256.
STET_API Sha256 hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message);
// Compares bytes in time that does not depend on where they differ. Bytes of different sizes are
// unequal.
STET_API bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);

}  // namespace stet
