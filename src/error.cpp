#include "stet/error.hpp"

#include <utility>

namespace stet {
namespace {

std::string compose(const std::string& file, const std::string& field, const std::string& expected,
                    const std::string& found) {
  std::string line;
  for (const std::string* part : {&file, &field}) {
    if (!part->empty()) line += printable(*part, 1000) + ": ";
  }
  line += "expected " + printable(expected, 1000);
  if (!found.empty()) line += ", found " + printable(found, 1000);
  return line;
}

// Length of the well-formed UTF-8 sequence at `at`, or 0.
size_t utf8_length(const std::string& s, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char lead = byte(at);
  const size_t length = lead < 0x80 ? 1 : lead >= 0xC2 && lead < 0xE0 ? 2 : lead >= 0xE0 && lead < 0xF0 ? 3
                        : lead >= 0xF0 && lead < 0xF5 ? 4 : 0;
  if (length == 0 || at + length > s.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
  }
  if ((lead == 0xE0 && byte(at + 1) < 0xA0) || (lead == 0xED && byte(at + 1) > 0x9F) ||
      (lead == 0xF0 && byte(at + 1) < 0x90) || (lead == 0xF4 && byte(at + 1) > 0x8F)) {
    return 0;
  }
  return length;
}

}  // namespace

std::string printable(const std::string& text, size_t limit) {
  static const char* hex = "0123456789abcdef";
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (out.size() >= limit) return out + "...";
    const unsigned char c = static_cast<unsigned char>(text[i]);
    const size_t length = utf8_length(text, i);
    if (length == 0 || c < 0x20 || c == 0x7F) {
      if (c == '\n') out += "\\n";
      else if (c == '\t') out += "\\t";
      else out += std::string("\\x") + hex[c >> 4] + hex[c & 15];
      i += 1;
    } else {
      out.append(text, i, length);
      i += length;
    }
  }
  return out;
}

Error::Error(ErrorKind kind_, std::string file_, std::string field_, std::string expected_, std::string found_)
    : std::runtime_error(compose(file_, field_, expected_, found_)),
      kind(kind_),
      file(std::move(file_)),
      field(std::move(field_)),
      expected(std::move(expected_)),
      found(std::move(found_)) {}

}  // namespace stet
