#include "stet/base/error.hpp"

#include <utility>

#include "stet/text/utf8.hpp"

namespace stet {
namespace {

// Returns "FILE: FIELD: expected X, found Y". Without `expected`, `found` is a whole sentence.
std::string compose(const std::string& file, const std::string& field, const std::string& expected,
                    const std::string& found) {
  std::string line;
  for (const std::string* part : {&file, &field}) {
    if (!part->empty()) line += printable(*part, 1000) + ": ";
  }
  if (expected.empty()) return line + printable(found, 1000);
  line += "expected " + printable(expected, 1000);
  if (!found.empty()) line += ", found " + printable(found, 1000);
  return line;
}

// Appends the character or byte at `at` in printable form. Returns its length in `text`.
size_t append_shown(std::string& out, std::string_view text, size_t at) {
  static const char* hex = "0123456789abcdef";
  const Utf8 c = utf8_at(text, at);
  if (c.valid && !is_control(c.code)) {
    out += text.substr(at, c.length);
  } else if (c.valid && c.code >= 0x80) {
    out += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) out += hex[c.code >> shift & 15];
  } else {
    for (size_t i = at; i < at + c.length; ++i) {
      const unsigned char byte = static_cast<unsigned char>(text[i]);
      out += std::string("\\x") + hex[byte >> 4] + hex[byte & 15];
    }
  }
  return c.length;
}

}  // namespace

std::string printable(const std::string& text, size_t limit) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (out.size() >= limit) return out + "...";
    if (text[i] == '\n' || text[i] == '\t')
      out += text[i++] == '\n' ? "\\n" : "\\t";
    else
      i += append_shown(out, text, i);
  }
  return out;
}

std::string for_terminal(std::string_view text) {
  const auto harmless = [](char c) { return (c >= ' ' && c < '\x7F') || c == '\n' || c == '\t'; };
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t from = i;
    while (i < text.size() && harmless(text[i])) ++i;
    out += text.substr(from, i - from);
    if (i < text.size()) i += append_shown(out, text, i);
  }
  return out;
}

Error::Error(ErrorKind kind_, std::string file_, std::string field_, std::string expected_,
             std::string found_)
    : std::runtime_error(compose(file_, field_, expected_, found_)),
      kind(kind_),
      file(std::move(file_)),
      field(std::move(field_)),
      expected(std::move(expected_)),
      found(std::move(found_)) {}

}  // namespace stet
