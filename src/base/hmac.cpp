#include "stet/base/hmac.hpp"

#include <algorithm>
#include <array>

namespace stet {

Sha256 hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message) {
  Sha256 short_key;
  if (key.size() > 64) {
    short_key = sha256_of(key);
    key = short_key.bytes;
  }
  std::array<std::byte, 64> inner, outer;
  inner.fill(std::byte{0x36});
  outer.fill(std::byte{0x5c});
  for (size_t i = 0; i < key.size(); ++i) {
    inner[i] ^= key[i];
    outer[i] ^= key[i];
  }
  RunningSha256 first, second;
  first.add(inner);
  first.add(message);
  const Sha256 digest = first.result();
  second.add(outer);
  second.add(digest.bytes);
  return second.result();
}

bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (a.size() != b.size()) return false;
  std::byte difference{};
  for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  volatile std::byte found = difference;  // keeps the compiler from leaving the loop early
  return found == std::byte{};
}

}  // namespace stet
