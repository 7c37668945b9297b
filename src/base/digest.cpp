#include "stet/base/digest.hpp"

#include <fmt/format.h>

#include "kernels/xxh3.hpp"

namespace stet {

struct RunningDigest::State {
  State() : hash(xxh3_begin()) {}
  ~State() { xxh3_free(hash); }

  Xxh3State* const hash;
};

Digest digest_of(std::span<const std::byte> bytes) {
  const Hash128 h = xxh3_128(bytes.data(), bytes.size());
  return {h.low, h.high};
}

std::string digest_text(const Digest& digest) {
  return fmt::format("xxh3:{:016x}{:016x}", digest.high, digest.low);
}

std::optional<Digest> parse_digest(const std::string& text) {
  if (text.size() != 37 || !text.starts_with("xxh3:") ||
      text.find_first_not_of("0123456789abcdef", 5) != std::string::npos)
    return std::nullopt;
  Digest digest;
  digest.high = std::stoull(text.substr(5, 16), nullptr, 16);
  digest.low = std::stoull(text.substr(21, 16), nullptr, 16);
  return digest;
}

RunningDigest::RunningDigest() : state_(std::make_unique<State>()) {}
RunningDigest::~RunningDigest() = default;

void RunningDigest::add(std::span<const std::byte> bytes) {
  xxh3_update(*state_->hash, bytes.data(), bytes.size());
}

Digest RunningDigest::result() const {
  const Hash128 h = xxh3_digest(*state_->hash);
  return {h.low, h.high};
}

}  // namespace stet
