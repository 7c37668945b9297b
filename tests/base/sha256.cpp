// SHA-256 against the published examples of FIPS 180-4, and stet's own implementation against
// libcrypto's.
#include <random>

#include "src/base/sha256_portable.hpp"
#include "tests/support/models.hpp"

namespace stet::test::sha256_tests {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// Hashes in two pieces that meet at `cut`, with this CPU's SHA instructions or without.
Sha256 portable(std::span<const std::byte> bytes, size_t cut = 0,
                const Sha256Kernel* kernel = sha256_kernel()) {
  PortableSha256 running(kernel);
  running.add(bytes.first(cut));
  running.add(bytes.subspan(cut));
  return running.result();
}

TEST(Sha256, GivesThePublishedHashes) {
  const std::pair<std::string, std::string> published[] = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmn"
       "opqrsmnopqrstnopqrstu",
       "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
      {std::string(1000000, 'a'),
       "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"}};
  for (const auto& [text, hex] : published) {
    EXPECT_EQ(sha256_text(sha256_of(bytes_of(text))), "sha256:" + hex);
    EXPECT_EQ(sha256_text(portable(bytes_of(text))), "sha256:" + hex);
    EXPECT_EQ(sha256_text(portable(bytes_of(text), 0, nullptr)), "sha256:" + hex);
  }
}

TEST(Sha256, OursAgreesWithTheLibraryForAnyLengthAndPieces) {
  std::mt19937 random(1);
  std::string text;
  for (size_t length = 0; length < 300; ++length, text += static_cast<char>(random())) {
    const Sha256 expected = sha256_of(bytes_of(text));
    for (const size_t cut : {size_t{0}, length / 3, length}) {
      EXPECT_EQ(portable(bytes_of(text), cut), expected) << length;
      EXPECT_EQ(portable(bytes_of(text), cut, nullptr), expected) << length;
    }
    RunningSha256 running;
    for (const char c : text) running.add(bytes_of(std::string(1, c)));
    EXPECT_EQ(running.result(), expected);
  }
}

TEST(Sha256, TextGoesBothWays) {
  const Sha256 hash = sha256_of(bytes_of("stet"));
  EXPECT_EQ(parse_sha256(sha256_text(hash)), hash);
  const std::string text = sha256_text(hash);
  for (const std::string& none : {std::string(), text.substr(1), text + "0",
                                  text.substr(0, 70) + "G", "sha255" + text.substr(6)}) {
    EXPECT_FALSE(parse_sha256(none)) << none;
  }
}

}  // namespace
}  // namespace stet::test::sha256_tests
