#include "src/text/jinja/text.hpp"

#include <algorithm>

namespace stet::jinja {

void append(Text& to, std::string_view bytes, int origin) {
  const size_t begin = to.bytes.size();
  to.bytes += bytes;
  if (origin == kUnmarked || bytes.empty()) return;
  if (!to.marks.empty() && to.marks.back().end == begin && to.marks.back().origin == origin) {
    to.marks.back().end = to.bytes.size();
  } else {
    to.marks.push_back({begin, to.bytes.size(), origin});
  }
}

void append(Text& to, const Text& from) { append(to, from, 0, from.bytes.size()); }

void append(Text& to, const Text& from, size_t begin, size_t end) {
  const std::string_view bytes = from.bytes;
  size_t at = begin;
  auto mark = std::upper_bound(from.marks.begin(), from.marks.end(), begin,
                               [](size_t byte, const Mark& m) { return byte < m.end; });
  for (; mark != from.marks.end() && mark->begin < end; ++mark) {
    const size_t marked = std::max(mark->begin, begin), stop = std::min(mark->end, end);
    append(to, bytes.substr(at, marked - at));
    append(to, bytes.substr(marked, stop - marked), mark->origin);
    at = stop;
  }
  append(to, bytes.substr(at, end - at));
}

Text slice(const Text& text, size_t begin, size_t end) {
  Text out;
  append(out, text, begin, end);
  return out;
}

size_t characters(std::string_view bytes) {
  return static_cast<size_t>(std::count_if(bytes.begin(), bytes.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

size_t byte_of(std::string_view bytes, size_t index) {
  size_t at = 0;
  while (index-- > 0 && at < bytes.size()) at += utf8_at(bytes, at).length;
  return at;
}

Span stripped(std::string_view bytes, const std::string* chars, bool left, bool right) {
  const auto goes = [&](size_t at, size_t length) {
    if (chars == nullptr) return is_space(utf8_at(bytes, at).code);
    for (size_t i = 0; i < chars->size(); i += utf8_at(*chars, i).length) {
      if (utf8_at(*chars, i).length == length && chars->compare(i, length, bytes, at, length) == 0)
        return true;
    }
    return false;
  };
  Span span{0, bytes.size()};
  while (left && span.begin < span.end) {
    const size_t length = utf8_at(bytes, span.begin).length;
    if (!goes(span.begin, length)) break;
    span.begin += length;
  }
  while (right && span.begin < span.end) {
    const size_t length = utf8_last(bytes.substr(0, span.end));
    if (!goes(span.end - length, length)) break;
    span.end -= length;
  }
  return span;
}

}  // namespace stet::jinja
