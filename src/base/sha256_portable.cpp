// SHA-256 after FIPS 180-4, sections 5.1.1, 5.3.3 and 6.2.2, whose names it keeps.
#include "src/base/sha256_portable.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace stet {
namespace {

uint32_t read_big_endian(const std::byte* at) {
  uint32_t x = 0;
  for (int i = 0; i < 4; ++i) x = x << 8 | static_cast<uint32_t>(at[i]);
  return x;
}

void compress_block(std::array<uint32_t, 8>& state, const std::byte* block) {
  uint32_t W[64];
  for (int t = 0; t < 16; ++t) W[t] = read_big_endian(block + 4 * t);
  for (int t = 16; t < 64; ++t) {
    const uint32_t x = W[t - 15], y = W[t - 2];
    W[t] = W[t - 16] + (std::rotr(x, 7) ^ std::rotr(x, 18) ^ x >> 3) + W[t - 7] +
           (std::rotr(y, 17) ^ std::rotr(y, 19) ^ y >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (int t = 0; t < 64; ++t) {
    const uint32_t T1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                        ((e & f) ^ (~e & g)) + kSha256Constants[t] + W[t];
    const uint32_t T2 =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + T1, d = c, c = b, b = a, a = T1 + T2;
  }
  const uint32_t after[] = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state[i] += after[i];
}

}  // namespace

void PortableSha256::compress(const std::byte* blocks, size_t count) {
  if (kernel_ != nullptr) return kernel_->compress(state_.data(), blocks, count);
  for (size_t i = 0; i < count; ++i) compress_block(state_, blocks + kBlock * i);
}

void PortableSha256::add(std::span<const std::byte> bytes) {
  const auto held = static_cast<size_t>(length_ % kBlock);
  length_ += bytes.size();
  if (held > 0) {
    const size_t taken = std::min(kBlock - held, bytes.size());
    std::memcpy(rest_.data() + held, bytes.data(), taken);
    if (held + taken < kBlock) return;
    compress(rest_.data(), 1);
    bytes = bytes.subspan(taken);
  }
  const size_t whole = bytes.size() / kBlock;
  compress(bytes.data(), whole);
  const std::span<const std::byte> rest = bytes.subspan(whole * kBlock);
  if (!rest.empty()) std::memcpy(rest_.data(), rest.data(), rest.size());
}

Sha256 PortableSha256::result() {
  const uint64_t bits = length_ * 8;
  std::byte padding[72] = {std::byte{0x80}};
  // Zeros that let the length end a block.
  const size_t zeros = (119 - static_cast<size_t>(length_ % kBlock)) % kBlock;
  for (size_t i = 0; i < 8; ++i)
    padding[1 + zeros + i] = static_cast<std::byte>(bits >> (56 - 8 * i));
  add({padding, 1 + zeros + 8});
  Sha256 hash;
  for (size_t i = 0; i < 32; ++i)
    hash.bytes[i] = static_cast<std::byte>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return hash;
}

}  // namespace stet
