// HMAC-SHA256 (RFC 2104): what shows that somebody who holds a key has made some bytes.
#pragma once

#include <cstddef>
#include <span>

#include "stet/api.h"
#include "stet/base/sha256.hpp"

namespace stet {

// A key of more than 64 bytes counts as its SHA-256.
STET_API Sha256 hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message);
// Takes as long for hashes that differ early as for those that differ late.
STET_API bool equal_in_constant_time(const Sha256& a, const Sha256& b);

}  // namespace stet
