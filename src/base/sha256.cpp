#include "stet/base/sha256.hpp"

#include <fmt/format.h>

#include "src/base/sha256_portable.hpp"

#ifdef STET_HAVE_LIBCRYPTO
#include <openssl/evp.h>

#include <new>
#endif

namespace stet {

#ifdef STET_HAVE_LIBCRYPTO

namespace {

// Looked up once: each use of EVP_sha256() looks it up, which takes longer than hashing a block's
// tokens.
const EVP_MD* algorithm() {
  static EVP_MD* const found = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  return found;
}

}  // namespace

// libcrypto fails only if there is no memory.
struct RunningSha256::State {
  State() : context(EVP_MD_CTX_new()) {
    if (context == nullptr || EVP_DigestInit_ex2(context, algorithm(), nullptr) != 1)
      throw std::bad_alloc();
  }
  ~State() { EVP_MD_CTX_free(context); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void add(std::span<const std::byte> bytes) {
    if (EVP_DigestUpdate(context, bytes.data(), bytes.size()) != 1) throw std::bad_alloc();
  }
  Sha256 result() {
    Sha256 hash;
    if (EVP_DigestFinal_ex(context, reinterpret_cast<unsigned char*>(hash.bytes.data()), nullptr) !=
        1)
      throw std::bad_alloc();
    return hash;
  }

  EVP_MD_CTX* context;
};

#else

struct RunningSha256::State : PortableSha256 {};

#endif

RunningSha256::RunningSha256() : state_(std::make_unique<State>()) {}
RunningSha256::~RunningSha256() = default;
void RunningSha256::add(std::span<const std::byte> bytes) { state_->add(bytes); }
Sha256 RunningSha256::result() { return state_->result(); }

Sha256 sha256_of(std::span<const std::byte> bytes) {
  RunningSha256 running;
  running.add(bytes);
  return running.result();
}

namespace {
constexpr size_t kPrefix = 7;  // "sha256:"
}

std::string sha256_text(const Sha256& hash) {
  std::string text = "sha256:";
  for (const std::byte b : hash.bytes) text += fmt::format("{:02x}", static_cast<unsigned>(b));
  return text;
}

std::optional<Sha256> parse_sha256(const std::string& text) {
  if (text.size() != kPrefix + 64 || !text.starts_with("sha256:")) return std::nullopt;
  if (text.find_first_not_of("0123456789abcdef", kPrefix) != std::string::npos) return std::nullopt;
  Sha256 hash;
  for (size_t i = 0; i < hash.bytes.size(); ++i)
    hash.bytes[i] =
        static_cast<std::byte>(std::stoul(text.substr(kPrefix + 2 * i, 2), nullptr, 16));
  return hash;
}

}  // namespace stet
