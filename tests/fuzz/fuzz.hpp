// What the fuzz targets share. A target hands bytes to a reader and uses all that comes out. The
// reader may refuse them with a stet::Error of one line; any other exception, a sanitizer's report,
// a hang or a huge allocation is a find.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>

#include "stet/base/error.hpp"

namespace stet::fuzz {

// Counts what was accepted, and tells it at the end: a target that accepts nothing tests too
// little.
struct Tally {
  size_t accepted = 0;
  ~Tally() { std::fprintf(stderr, "accepted %zu inputs\n", accepted); }
};
inline Tally tally;

// A condition that must hold; libFuzzer keeps the input when it does not.
inline void must(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

template <class Use>
int read_and_use(Use use) {
  try {
    use();
    ++tally.accepted;
  } catch (const Error& e) {
    must(std::string_view(e.what()).find('\n') == std::string_view::npos, "an error is one line");
  }
  return 0;
}

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Reads every byte, so that a view that leaves its file is seen.
inline void touch(std::span<const std::byte> bytes) {
  static volatile unsigned sink;
  unsigned sum = 0;
  for (const std::byte b : bytes) sum += static_cast<unsigned>(b);
  sink = sum;
}

}  // namespace stet::fuzz
