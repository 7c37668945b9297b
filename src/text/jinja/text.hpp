// Builds and cuts texts with marks. All strings of the engine pass through these functions, so that
// no mark is lost.
#pragma once

#include <string_view>

#include "stet/text/jinja.hpp"
#include "stet/text/utf8.hpp"

namespace stet::jinja {

void append(Text& to, std::string_view bytes, int origin = kUnmarked);
void append(Text& to, const Text& from);
// Appends bytes begin..end-1 of `from`.
void append(Text& to, const Text& from, size_t begin, size_t end);

Text slice(const Text& text, size_t begin, size_t end);
inline Text plain(std::string_view bytes) { return {std::string(bytes), {}}; }

// Calls f(code point, bytes, origin) for every character.
template <class F>
void each_character(const Text& text, F f) {
  size_t mark = 0;
  for (size_t at = 0; at < text.bytes.size();) {
    const Utf8 c = utf8_at(text.bytes, at);
    while (mark < text.marks.size() && text.marks[mark].end <= at) ++mark;
    const bool marked = mark < text.marks.size() && text.marks[mark].begin <= at;
    f(c.code, std::string_view(text.bytes).substr(at, c.length),
      marked ? text.marks[mark].origin : kUnmarked);
    at += c.length;
  }
}

size_t characters(std::string_view bytes);
// Returns the byte at which character `index` begins, or the size of a shorter text.
size_t byte_of(std::string_view bytes, size_t index);

// Unicode case and classes, as in Python's str methods.
enum class Case { lower, upper, title, capitalized, swapped, folded };
Text change_case(const Text& text, Case to);
bool is_space(uint32_t code);  // str.isspace, \s
bool is_line_end(uint32_t code);
bool is_printable(uint32_t code);
bool is_upper(uint32_t code);
bool is_lower(uint32_t code);
bool is_alpha(uint32_t code);
bool is_decimal(uint32_t code);
bool is_digit(uint32_t code);
bool is_numeric(uint32_t code);
inline bool is_word(uint32_t code) { return code == '_' || is_alpha(code) || is_numeric(code); }

struct Span {
  size_t begin, end;
};
// Returns the span that str.strip leaves. If `chars` is null, strips white space.
Span stripped(std::string_view bytes, const std::string* chars, bool left, bool right);
// Calls f(line) for the lines of str.splitlines, including line ends if `keep` is set.
template <class F>
void each_line(std::string_view bytes, bool keep, F f) {
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const Utf8 c = utf8_at(bytes, at);
    const size_t end = at;
    at += c.length;
    if (!is_line_end(c.code)) continue;
    if (c.code == '\r' && at < bytes.size() && bytes[at] == '\n') ++at;
    f(Span{begin, keep ? at : end});
    begin = at;
  }
  if (begin < bytes.size()) f(Span{begin, bytes.size()});
}

}  // namespace stet::jinja
