// stet's own SHA-256, for builds without libcrypto.
#pragma once

#include <array>

#include "kernels/sha256.hpp"
#include "stet/base/sha256.hpp"

namespace stet {

class PortableSha256 {
 public:
  static constexpr size_t kBlock = 64;  // bytes

  // If `kernel` is null, uses only instructions that every CPU has.
  explicit PortableSha256(const Sha256Kernel* kernel = sha256_kernel()) : kernel_(kernel) {}

  void add(std::span<const std::byte> bytes);
  Sha256 result();

 private:
  void compress(const std::byte* blocks, size_t count);

  const Sha256Kernel* kernel_;
  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, kBlock> rest_;  // bytes of the incomplete block
  uint64_t length_ = 0;                 // bytes
};

}  // namespace stet
