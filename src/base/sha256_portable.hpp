// SHA-256 for builds without libcrypto.
#pragma once

#include <array>

#include "stet/base/sha256.hpp"

namespace stet {

class PortableSha256 {
 public:
  void add(std::span<const std::byte> bytes);
  Sha256 result();

 private:
  void compress(const std::byte* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> rest_;  // of a block that is not full yet
  uint64_t length_ = 0;             // bytes
};

}  // namespace stet
