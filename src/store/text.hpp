// Hashes and names as parts of files' and keys' names.
#pragma once

#include <optional>
#include <string>

#include "stet/base/sha256.hpp"

namespace stet {

inline std::string hex_of_hash(const Sha256& hash) { return sha256_text(hash).substr(7); }
inline std::optional<Sha256> hash_of_hex(const std::string& hex) {
  return hex.size() == 64 ? parse_sha256("sha256:" + hex) : std::nullopt;
}

// 1 to 128 of a-z A-Z 0-9 . _ -, the first no dot and no hyphen.
bool is_store_name(const std::string& name);

}  // namespace stet
