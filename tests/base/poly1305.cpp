// Poly1305 against the vectors of RFC 8439, and stet's own implementation against libcrypto's.
#include <random>

#include "src/base/poly1305_portable.hpp"
#include "tests/support/models.hpp"

namespace stet::test::poly1305_tests {
namespace {

using Key = std::array<std::byte, 32>;

std::vector<std::byte> bytes_of_hex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string hex_of(const Poly1305Tag& tag) {
  std::string hex;
  for (const std::byte b : tag) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += {kDigits[static_cast<unsigned>(b) >> 4], kDigits[static_cast<unsigned>(b) & 15]};
  }
  return hex;
}

// Checks a tag. `r` and `s` are the halves of the key in hexadecimal without trailing zeros.
void expect_tag(const std::string& r, const std::string& s, const std::vector<std::byte>& message,
                const std::string& tag) {
  const auto padded = [](std::string hex) {
    hex.resize(32, '0');
    return hex;
  };
  Key key;
  std::ranges::copy(bytes_of_hex(padded(r) + padded(s)), key.begin());
  EXPECT_EQ(hex_of(poly1305_of(key, message)), padded(tag));
  EXPECT_EQ(hex_of(portable_poly1305_of(key, message)), padded(tag));
}

const std::string kContribution =
    "Any submission to the IETF intended by the Contributor for publication as all or part of an "
    "IETF Internet-Draft or RFC and any statement made within the context of an IETF activity is "
    "considered an \"IETF Contribution\". Such statements include oral statements in IETF "
    "sessions, as well as written and electronic communications made at any time or place, which "
    "are addressed to";

TEST(Poly1305, GivesTheTagsOfTheRfc) {
  // RFC 8439: 2.5.2, then A.3, vectors 1 to 4.
  expect_tag("85d6be7857556d337f4452fe42d506a8", "0103808afb0db2fd4abff6af4149f51b",
             bytes_of("Cryptographic Forum Research Group"), "a8061dc1305136c6c22b8baf0c0127a9");
  expect_tag("", "", std::vector<std::byte>(64), "");
  const std::string half = "36e5f6b5c5e06070f0efca96227a863e";
  expect_tag("", half, bytes_of(kContribution), half);
  expect_tag(half, "", bytes_of(kContribution), "f3477e7cd95417af89a6b8794c310cf0");
  expect_tag("1c9240a5eb55d38af333888604f6b5f0", "473917c1402b80099dca5cbc207075c0",
             bytes_of("'Twas brillig, and the slithy toves\nDid gyre and gimble in the wabe:\nAll "
                      "mimsy were the borogoves,\nAnd the mome raths outgrabe."),
             "4541669a7eaaee61e708dc7cbcc5eb62");
}

// RFC 8439, A.3, vectors 5 to 11: sums at 2^130 - 5 and 2^128, and carries through all digits.
TEST(Poly1305, GivesTheTagsOfTheRfcWhereSumsWrapAround) {
  const std::string ones(32, 'f'), zeros(30, '0');
  expect_tag("02", "", bytes_of_hex(ones), "03");
  expect_tag("02", ones, bytes_of_hex("02" + zeros), "03");
  expect_tag("01", "", bytes_of_hex(ones + "f0" + ones.substr(2) + "11" + zeros), "05");
  expect_tag(
      "01", "",
      bytes_of_hex(ones + "fbfefefefefefefefefefefefefefefe" + "01010101010101010101010101010101"),
      "");
  expect_tag("02", "", bytes_of_hex("fd" + ones.substr(2)), "fa" + ones.substr(2));
  const std::string r = "01000000000000000400000000000000", text =
                                                                "e33594d7505e43b90000000000000000"
                                                                "3394d7505e4379cd0100000000000000"
                                                                "00000000000000000000000000000000";
  expect_tag(r, "", bytes_of_hex(text + "01" + zeros), "14000000000000005500000000000000");
  expect_tag(r, "", bytes_of_hex(text), "13");
}

TEST(Poly1305, OursAgreesWithTheLibraryForAnyLengthAndAlignment) {
  std::mt19937 random(1);
  std::vector<std::byte> bytes((size_t{1} << 20) + 64);
  const auto draw = [&](std::span<std::byte> to) {
    for (std::byte& b : to) b = static_cast<std::byte>(random());
  };
  draw(bytes);
  std::vector<size_t> lengths = {4095, 4096, 65537, (size_t{1} << 20) - 1, size_t{1} << 20};
  for (size_t length = 0; length <= 300; ++length) lengths.push_back(length);
  for (const size_t length : lengths) {
    for (const size_t at : {0, 1, 3, 8, 13, 31}) {
      Key key;
      draw(key);
      const auto message = std::span<const std::byte>(bytes).subspan(at, length);
      EXPECT_EQ(portable_poly1305_of(key, message), poly1305_of(key, message)) << length;
    }
  }
}

// Messages and keys whose bits are all one produce the most carries.
TEST(Poly1305, OursAgreesWithTheLibraryOnBytesOfOnes) {
  std::mt19937 random(2);
  for (size_t length = 0; length <= 300; ++length) {
    std::vector<std::byte> message(length, std::byte{0xff});
    Key key;
    key.fill(std::byte{0xff});
    EXPECT_EQ(portable_poly1305_of(key, message), poly1305_of(key, message)) << length;
    if (length > 0) message[random() % length] = static_cast<std::byte>(random());
    key[random() % key.size()] = static_cast<std::byte>(random());
    EXPECT_EQ(portable_poly1305_of(key, message), poly1305_of(key, message)) << length;
  }
}

}  // namespace
}  // namespace stet::test::poly1305_tests
