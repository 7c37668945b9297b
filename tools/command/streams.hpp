// The standard streams. Messages beside the output go to stderr, and a failure to write them is
// ignored.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace stet::tool {

// Opens /dev/null for each standard stream that is closed, so that no file opened later takes its
// number. Writes to such a stream fail, and reads find the end.
void open_standard_streams();

// Reads a line of standard input, without its "\n". Returns false at the end. The streams of the C++
// library, which bring all locales with them, are not used.
bool read_line(std::string& line);

// Writes to stderr and flushes. Control characters are escaped. Does nothing if stderr is closed or
// full.
void write_error(std::string_view text);
// Writes an escape sequence of our own to stderr, unescaped.
void write_error_style(std::string_view sequence);
// Replaces the line that is shown on stderr; "" clears it.
void rewrite_line(std::string_view text);

// Formats and writes to stderr. A line ends with "\n".
template <typename... T>
void say(fmt::format_string<T...> format, T&&... values) {
  write_error(fmt::format(format, std::forward<T>(values)...));
}

}  // namespace stet::tool
