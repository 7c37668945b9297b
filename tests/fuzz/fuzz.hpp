// Helpers of the fuzz targets. A target passes bytes to a reader and uses everything that the
// reader returns. The reader may refuse them with a stet::Error of one line. Any other exception, a
// sanitizer report, a hang or a huge allocation is a finding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>

#include "stet/base/error.hpp"

namespace stet::fuzz {

// Counts accepted inputs and prints the count at the end. A target that accepts nothing tests too
// little.
struct Tally {
  size_t accepted = 0;
  ~Tally() { std::fprintf(stderr, "accepted %zu inputs\n", accepted); }
};
inline Tally tally;

// Aborts unless the condition holds, so that libFuzzer keeps the input.
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

// Reads every byte, so that a sanitizer detects a view outside of its file.
inline void touch(std::span<const std::byte> bytes) {
  static volatile unsigned sink;
  unsigned sum = 0;
  for (const std::byte b : bytes) sum += static_cast<unsigned>(b);
  sink = sum;
}

}  // namespace stet::fuzz
