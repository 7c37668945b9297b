// SHA-256 (FIPS 180-4), which identifies states, blocks of keys and values, and models.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "stet/api.h"

namespace stet {

// A SHA-256 hash.
struct Sha256 {
  std::array<std::byte, 32> bytes{};
  auto operator<=>(const Sha256&) const = default;
};

// Returns the hash of bytes.
STET_API Sha256 sha256_of(std::span<const std::byte> bytes);
STET_API std::string sha256_text(const Sha256& hash);  // "sha256:" and 64 hex digits
STET_API std::optional<Sha256> parse_sha256(const std::string& text);  // inverse of sha256_text()

// Computes the hash of bytes that arrive in pieces. Equals sha256_of all of them.
class STET_API RunningSha256 {
 public:
  RunningSha256();
  ~RunningSha256();
  RunningSha256(const RunningSha256&) = delete;
  RunningSha256& operator=(const RunningSha256&) = delete;

  void add(std::span<const std::byte> bytes);
  Sha256 result();  // must be the last call

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stet
