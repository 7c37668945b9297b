// Character classes for the pre-tokenizers and normalizers of tokenizer.json. Every build uses this
// version of Unicode, so that no library's version decides the ids of a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace stet {

extern const char kUnicodeVersion[];

// Classes \p{L}, \p{N}, and \s as in Oniguruma: [\t-\r\x85\p{Z}].
enum class CharClass : uint8_t { other, letter, number, space };

// A nibble for each code point: its class, plus 4 if NFC may change it. Equal blocks of 128 are
// stored once. Code points after the last block are neither letter nor number nor space.
inline constexpr size_t kUnicodeBlockCount = 1575;
extern const uint8_t kUnicodeBlocks[kUnicodeBlockCount];
extern const uint64_t kUnicodeNibbles[];

inline unsigned unicode_nibble(uint32_t code) {
  if (code / 128 >= kUnicodeBlockCount) return 4;
  const uint64_t* block = kUnicodeNibbles + size_t{kUnicodeBlocks[code / 128]} * 8;
  return block[code % 128 / 16] >> code % 16 * 4 & 15;
}

inline CharClass char_class(uint32_t code) {
  return static_cast<CharClass>(unicode_nibble(code) & 3);
}

// Returns the size of the longest prefix that NFC certainly leaves unchanged. None of its
// characters is unassigned, combines with its predecessor or has another form. Such a prefix is its
// own NFC in this and every later version of Unicode (UAX #15). The text must be valid UTF-8.
size_t nfc_prefix(std::string_view text);

}  // namespace stet
