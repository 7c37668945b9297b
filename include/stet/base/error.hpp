// Every part of stet reports failure by one exception type, whose text is one line.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "stet/api.h"

namespace stet {

enum class ErrorKind {
  io,           // a file cannot be opened, read or written
  format,       // bytes do not follow their format: truncated, out of range, inconsistent
  unsupported,  // well-formed, but of a kind that this build does not handle
  mismatch,     // two things that must agree do not (snapshot and model, say)
  capacity,     // more tokens than the session was made for
  argument,     // a value handed in by the caller is out of its range
};

// An Error names `file` (a path, or the name of what was parsed, or empty), `field` within it, what
// was expected there and what was found. what() is "file: field: expected ..., found ..." on one
// line; control characters of untrusted text are escaped. Whatever threw it has changed nothing.
class STET_API Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string file, std::string field, std::string expected,
        std::string found);

  ErrorKind kind;
  std::string file, field, expected, found;
};

// The given text with control characters and broken UTF-8 escaped, cut to `limit` bytes: fit for
// one line. Control characters are those of Unicode's category Cc (C0, DEL, C1), line and paragraph
// separators, and what changes the direction of text.
STET_API std::string printable(const std::string& text, size_t limit = 200);
// The same for any number of lines, uncut: tabs and newlines stay. What a stranger wrote cannot
// drive a terminal then.
STET_API std::string for_terminal(std::string_view text);

// Returns the range [begin, end) as texts have it, with its last number: "3..9". An end of -1 is
// open: "3..". An empty range is told by its ends: "none (begin 9, end 3)".
inline std::string range_text(int64_t begin, int64_t end) {
  const std::string first = std::to_string(begin);
  if (end == -1) return first + "..";
  if (end <= begin) return "none (begin " + first + ", end " + std::to_string(end) + ")";
  return first + ".." + std::to_string(end - 1);
}
// Returns what an error expects of positions in a state of `size` tokens.
inline std::string some_positions(int64_t size) {
  return size > 0 ? "some of " + range_text(0, size) : "none: there are no tokens";
}

}  // namespace stet
