// XXH3-128 digests: they find damage and mix-ups, quickly, and are no protection against forgery.
// What names things: sha256.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace stet {

struct Digest {
  uint64_t low = 0, high = 0;
  bool operator==(const Digest&) const = default;
};

Digest digest_of(std::span<const std::byte> bytes);
std::string digest_text(const Digest& digest);  // "xxh3:" and 32 hex digits, high half first
std::optional<Digest> parse_digest(const std::string& text);  // the inverse

// The digest of bytes that come in pieces; equal to digest_of all of them.
class RunningDigest {
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
