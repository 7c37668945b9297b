#include "src/text/byte_alphabet.hpp"

#include "stet/text/utf8.hpp"

namespace stet {
namespace {

constexpr uint32_t kCodes = 0x100 + 68;

// Returns a table of the byte for each code point, or -1.
constexpr std::array<int16_t, kCodes> make_bytes() {
  std::array<int16_t, kCodes> bytes{};
  bytes.fill(-1);
  uint32_t other = 0x100;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    bytes[printable ? b : other++] = static_cast<int16_t>(b);
  }
  return bytes;
}

constexpr std::array<int16_t, kCodes> kBytes = make_bytes();

}  // namespace

std::optional<std::string> bytes_of_piece(std::string_view piece) {
  std::string bytes;
  for (size_t i = 0; i < piece.size();) {
    const Utf8 c = utf8_at(piece, i);
    if (c.code >= kCodes || kBytes[c.code] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kBytes[c.code]));
    i += c.length;
  }
  return bytes;
}

}  // namespace stet
