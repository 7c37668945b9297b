// UTF-8 decoding. Ill-formed text follows the WHATWG rule: each maximal ill-formed subsequence
// counts as one U+FFFD.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "stet/api.h"

namespace stet {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// One character of a text. For an ill-formed subsequence, `code` is U+FFFD and `length` its length;
// `cut` is true if bytes after the end of the text could complete it.
struct Utf8 {
  uint32_t code;
  uint32_t length;
  bool valid, cut;
};

// Returns the character at `at`, which must be less than text.size().
inline Utf8 utf8_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true, false};
  const uint32_t length = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length == 0) return {0xFFFD, 1, false, false};
  // After four lead bytes the second byte has a narrower range. This excludes overlong forms,
  // surrogates and codes above U+10FFFF.
  uint32_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  uint32_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  uint32_t code = lead & (0x7Fu >> length);
  for (uint32_t i = 1; i < length; ++i) {
    if (at + i >= text.size()) return {0xFFFD, i, false, true};
    const uint32_t next = byte(i);
    if (next < low || next > high) return {0xFFFD, i, false, false};
    code = code << 6 | (next & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {code, length, true, false};
}

// Appends a character to a text.
STET_API void utf8_append(std::string& text, uint32_t code);

// Returns true if a text is valid UTF-8.
STET_API bool utf8_valid(std::string_view text);

// Returns the text with U+FFFD for each maximal ill-formed subsequence.
STET_API std::string utf8_lossy(std::string_view text);

// Returns the length of the last character of a valid, non-empty text.
STET_API size_t utf8_last(std::string_view text);

// Returns true if a character could control a terminal or disguise a line: category Cc, line and
// paragraph separators, bidirectional controls.
STET_API bool is_control(uint32_t code);

// Returns true for characters with Unicode's White_Space property.
STET_API bool is_white_space(uint32_t code);

}  // namespace stet
