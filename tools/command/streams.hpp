// The standard streams of a program: what it says beside its output goes to stderr and is never a
// reason to fail.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace stet::tool {

// A file opened later must not become standard output or stderr: writes to a closed one fail, and
// reads find nothing.
void open_standard_streams();

// Writes to stderr, at once, with control characters escaped. Where stderr is closed or full,
// nothing happens.
void write_error(std::string_view text);
// The same of our own sequences, as they are.
void write_error_style(std::string_view sequence);
// Puts a text in the place of the line that is being shown on stderr; "" clears it.
void rewrite_line(std::string_view text);

// The same, formatted. A line ends with "\n".
template <typename... T>
void say(fmt::format_string<T...> format, T&&... values) {
  write_error(fmt::format(format, std::forward<T>(values)...));
}

}  // namespace stet::tool
