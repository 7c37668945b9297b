#include "stet/base/poly1305.hpp"

#include "src/base/poly1305_portable.hpp"

#ifdef STET_HAVE_LIBCRYPTO
#include <openssl/evp.h>

#include <memory>
#include <new>
#endif

namespace stet {

#ifdef STET_HAVE_LIBCRYPTO

// libcrypto fails only if there is no memory.
Poly1305Tag poly1305_of(std::span<const std::byte, 32> key, std::span<const std::byte> message) {
  // Looked up once. Null if the system allows only the algorithms of FIPS 140.
  static EVP_MAC* const poly1305 = EVP_MAC_fetch(nullptr, "POLY1305", nullptr);
  if (poly1305 == nullptr) return portable_poly1305_of(key, message);
  const std::unique_ptr<EVP_MAC_CTX, decltype(&EVP_MAC_CTX_free)> context(EVP_MAC_CTX_new(poly1305),
                                                                          EVP_MAC_CTX_free);
  const auto bytes = [](const std::byte* at) { return reinterpret_cast<const unsigned char*>(at); };
  Poly1305Tag tag;
  size_t size = 0;
  if (context == nullptr ||
      EVP_MAC_init(context.get(), bytes(key.data()), key.size(), nullptr) != 1 ||
      EVP_MAC_update(context.get(), bytes(message.data()), message.size()) != 1 ||
      EVP_MAC_final(context.get(), reinterpret_cast<unsigned char*>(tag.data()), &size,
                    tag.size()) != 1)
    throw std::bad_alloc();
  return tag;
}

#else

Poly1305Tag poly1305_of(std::span<const std::byte, 32> key, std::span<const std::byte> message) {
  return portable_poly1305_of(key, message);
}

#endif

}  // namespace stet
