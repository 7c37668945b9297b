// The exception type by which all parts of stet report failure, with a text of one line.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "stet/api.h"

namespace stet {

// The kind of an error. The C interface has the same kinds as status codes.
enum class ErrorKind {
  io,           // a file cannot be opened, read or written
  format,       // bytes do not follow their format: truncated, out of range, inconsistent
  unsupported,  // well-formed, but not supported by this build
  mismatch,     // two things that must agree do not, such as snapshot and model
  capacity,     // more tokens than the session has room for
  argument,     // an argument is out of its range
};

// An error with `file` (a path, the name of the parsed input, or empty), the `field` in it, and the
// expected and found values. what() is "file: field: expected ..., found ..." on one line, with
// control characters of untrusted text escaped. If `expected` is empty, `found` is a whole sentence
// and what() is "file: field: sentence". A call that throws it has changed nothing.
class STET_API Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string file, std::string field, std::string expected,
        std::string found);

  ErrorKind kind;
  std::string file, field, expected, found;
};

// Returns the text for use in one line: control characters and broken UTF-8 escaped, cut to `limit`
// bytes. Control characters are Unicode's category Cc (C0, DEL, C1), line and paragraph separators,
// and characters that change text direction.
STET_API std::string printable(const std::string& text, size_t limit = 200);
// Like printable(), for any number of lines and without a limit; tabs and newlines stay. Untrusted
// text then cannot control a terminal.
STET_API std::string for_terminal(std::string_view text);

// Returns the range [begin, end) as text with its last number: "3..9". An end of -1 is open: "3..".
// An empty range shows its ends: "none (begin 9, end 3)".
inline std::string range_text(int64_t begin, int64_t end) {
  const std::string first = std::to_string(begin);
  if (end == -1) return first + "..";
  if (end <= begin) return "none (begin " + first + ", end " + std::to_string(end) + ")";
  return first + ".." + std::to_string(end - 1);
}
// Returns the `expected` text of an Error for a position that is not in a state of `size` tokens.
inline std::string some_positions(int64_t size) {
  return size > 0 ? "positions in " + range_text(0, size) : "none: there are no tokens";
}

}  // namespace stet
