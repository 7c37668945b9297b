// What the pre-tokenizers and normalizers of tokenizer.json ask about characters, in every build
// and of one version of Unicode, so that no library's version decides the ids of a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace stet {

extern const char kUnicodeVersion[];

// \p{L}, \p{N}, and \s as Oniguruma has it: [\t-\r\x85\p{Z}].
enum class CharClass : uint8_t { other, letter, number, space };

// A nibble for each code point: its class, and 4 where NFC may change it. Blocks of 128 that are
// alike are stored once; behind the last one nothing is a letter, a number or a space.
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

// The size of the longest beginning of this valid UTF-8 in which no character is unassigned,
// combines with one before it, or has another form. A text of such characters alone is its own NFC,
// in this version of Unicode and in all later ones (UAX #15).
size_t nfc_prefix(std::string_view text);

}  // namespace stet
