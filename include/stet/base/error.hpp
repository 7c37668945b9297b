// How every part of stet reports failure: one exception type, one line of text.
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

// What failed: `file` (a path, or the name of what was parsed, or empty), `field` within it, what
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

// The range [begin, end) as texts have it: with its last number, "3..9"; "3.." for an end below 0,
// which is none; "none of begin 9, end 3" where there is nothing in it.
inline std::string range_text(int64_t begin, int64_t end) {
  const std::string first = std::to_string(begin);
  if (end < 0) return first + "..";
  if (end <= begin) return "none of begin " + first + ", end " + std::to_string(end);
  return first + ".." + std::to_string(end - 1);
}

}  // namespace stet
