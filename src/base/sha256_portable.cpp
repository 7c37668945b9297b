// Written after FIPS 180-4, sections 5.1.1, 5.3.3 and 6.2.2, whose names are kept.
#include "src/base/sha256_portable.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace stet {
namespace {

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t read_big_endian(const std::byte* at) {
  uint32_t x = 0;
  for (int i = 0; i < 4; ++i) x = x << 8 | static_cast<uint32_t>(at[i]);
  return x;
}

}  // namespace

void PortableSha256::compress(const std::byte* block) {
  uint32_t W[64];
  for (int t = 0; t < 16; ++t) W[t] = read_big_endian(block + 4 * t);
  for (int t = 16; t < 64; ++t) {
    const uint32_t x = W[t - 15], y = W[t - 2];
    W[t] = W[t - 16] + (std::rotr(x, 7) ^ std::rotr(x, 18) ^ x >> 3) + W[t - 7] +
           (std::rotr(y, 17) ^ std::rotr(y, 19) ^ y >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (int t = 0; t < 64; ++t) {
    const uint32_t T1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                        ((e & f) ^ (~e & g)) + K[t] + W[t];
    const uint32_t T2 =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + T1, d = c, c = b, b = a, a = T1 + T2;
  }
  const uint32_t after[] = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state_[i] += after[i];
}

void PortableSha256::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t held = static_cast<size_t>(length_ % 64),
                 taken = std::min(64 - held, bytes.size());
    std::memcpy(rest_.data() + held, bytes.data(), taken);
    length_ += taken;
    bytes = bytes.subspan(taken);
    if (length_ % 64 == 0) compress(rest_.data());
  }
}

Sha256 PortableSha256::result() {
  const uint64_t bits = length_ * 8;
  std::byte padding[72] = {std::byte{0x80}};
  // Fills up so that the length ends a block.
  const size_t zeros = (119 - static_cast<size_t>(length_ % 64)) % 64;
  for (size_t i = 0; i < 8; ++i)
    padding[1 + zeros + i] = static_cast<std::byte>(bits >> (56 - 8 * i));
  add({padding, 1 + zeros + 8});
  Sha256 hash;
  for (size_t i = 0; i < 32; ++i)
    hash.bytes[i] = static_cast<std::byte>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return hash;
}

}  // namespace stet
