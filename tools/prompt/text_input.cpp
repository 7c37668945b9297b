#include "tools/prompt/text_input.hpp"

#include <string_view>

#include "stet/base/error.hpp"

namespace stet::tool {
namespace {

constexpr std::string_view kUtf8Mark = "\xef\xbb\xbf", kLittleMark = "\xff\xfe",
                           kBigMark = "\xfe\xff";

void append_utf8(uint32_t code, std::string* text) {
  const auto put = [&](uint32_t byte) { *text += static_cast<char>(byte); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xc0 | code >> 6);
  } else {
    if (code < 0x10000) {
      put(0xe0 | code >> 12);
    } else {
      put(0xf0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3f));
    }
    put(0x80 | (code >> 6 & 0x3f));
  }
  put(0x80 | (code & 0x3f));
}

}  // namespace

void TextDecoder::fail(const std::string& found) const {
  throw Error(ErrorKind::format, where_, "", "text in UTF-8 or UTF-16", found);
}

void TextDecoder::add(char byte, std::string* text) {
  if (encoding_ == Encoding::bytes) {
    *text += byte;
    return;
  }
  held_ += byte;
  if (encoding_ == Encoding::unknown) {
    const bool may_be = kUtf8Mark.starts_with(held_) || kLittleMark.starts_with(held_) ||
                        kBigMark.starts_with(held_);
    if (held_ == kLittleMark) encoding_ = Encoding::little;
    if (held_ == kBigMark) encoding_ = Encoding::big;
    if (!may_be || held_ == kUtf8Mark) {
      encoding_ = Encoding::bytes;
      if (!may_be) *text += held_;
    }
    if (encoding_ != Encoding::unknown) held_.clear();
    return;
  }
  if (held_.size() < 2) return;
  const auto first = static_cast<unsigned char>(held_[0]),
             second = static_cast<unsigned char>(held_[1]);
  held_.clear();
  add_unit(static_cast<uint16_t>(encoding_ == Encoding::little ? first | second << 8
                                                               : first << 8 | second),
           text);
}

void TextDecoder::add_unit(uint16_t unit, std::string* text) {
  const bool high = unit >= 0xd800 && unit < 0xdc00, low = unit >= 0xdc00 && unit < 0xe000;
  if (unit == 0) fail("a zero, as UTF-32 has it");
  if (low != (high_ != 0)) fail("half of a surrogate pair");
  if (high) {
    high_ = unit;
    return;
  }
  append_utf8(low ? 0x10000u + ((high_ - 0xd800u) << 10) + (unit - 0xdc00u) : unit, text);
  high_ = 0;
}

void TextDecoder::end(std::string* text) {
  if (encoding_ == Encoding::unknown) *text += held_;
  if (high_ != 0 || (encoding_ != Encoding::unknown && !held_.empty()))
    fail("text that ends within a character");
  held_.clear();
}

std::string as_text(std::string bytes, const std::string& where) {
  std::string text;
  if (bytes.starts_with(kLittleMark) || bytes.starts_with(kBigMark)) {
    TextDecoder decoder(where);
    text.reserve(bytes.size() / 2);
    for (const char byte : bytes) decoder.add(byte, &text);
    decoder.end(&text);
  } else {
    text = std::move(bytes);
    if (text.starts_with(kUtf8Mark)) text.erase(0, kUtf8Mark.size());
  }
  size_t to = text.find("\r\n");
  if (to == std::string::npos) return text;
  for (size_t from = to; from < text.size(); ++from) {
    if (text[from] == '\r' && from + 1 < text.size() && text[from + 1] == '\n') continue;
    text[to++] = text[from];
  }
  text.resize(to);
  return text;
}

}  // namespace stet::tool
