// XXH3-128 digests, which detect damage and mix-ups quickly but do not protect against forgery.
// sha256.hpp has the hashes that identify things.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "stet/api.h"

namespace stet {

// An XXH3-128 digest.
struct Digest {
  uint64_t low = 0, high = 0;
  bool operator==(const Digest&) const = default;
};

// Returns the digest of bytes.
STET_API Digest digest_of(std::span<const std::byte> bytes);
STET_API std::string digest_text(
    const Digest& digest);  // "xxh3:" and 32 hex digits, high half first
STET_API std::optional<Digest> parse_digest(const std::string& text);  // inverse of digest_text()

// Computes the digest of bytes that arrive in pieces. Equals digest_of all of them.
class STET_API RunningDigest {
 public:
  RunningDigest();
  ~RunningDigest();
  RunningDigest(const RunningDigest&) = delete;
  RunningDigest& operator=(const RunningDigest&) = delete;

  void add(std::span<const std::byte> bytes);
  Digest result() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stet
