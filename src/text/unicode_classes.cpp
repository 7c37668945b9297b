#include "src/text/unicode_classes.hpp"

#include "stet/text/utf8.hpp"

namespace stet {

#include "src/text/unicode_tables.inc"

size_t nfc_prefix(std::string_view text) {
  size_t at = 0;
  for (Utf8 c; at < text.size(); at += c.length) {
    c = utf8_at(text, at);
    if (unicode_nibble(c.code) & 4) break;
  }
  return at;
}

}  // namespace stet
