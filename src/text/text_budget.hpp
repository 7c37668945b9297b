// Limits the cost of encoding one text, whatever its tokenizer's files say.
#pragma once

#include <time.h>

#include <cstddef>
#include <string>

#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"

namespace stet {

class TextBudget {
 public:
  explicit TextBudget(size_t text)
      : bytes_(kTextBytes + kTextRatio * text),
        kept_(kTextBytes + kKeptRatio * text),
        end_(now() + kMatchSeconds + kMatchSecondsPerByte * static_cast<double>(text)) {}

  // Throws a capacity Error if the text has grown beyond the limit.
  void check_size(size_t bytes) const {
    if (bytes > bytes_)
      throw Error(ErrorKind::capacity, "", "text", "",
                  "normalizers would make it longer than " + std::to_string(bytes_) + " bytes");
  }
  // Counts a string that lives until the text is done. Throws a capacity Error beyond the limit.
  void keep(size_t bytes) {
    bytes += sizeof(std::string);
    if (bytes > kept_)
      throw Error(ErrorKind::capacity, "", "text", "",
                  "pre-tokenizers would make too many words of it");
    kept_ -= bytes;
  }
  // Throws a capacity Error if matching has taken too long. Checks the time after every miss and
  // after some matches.
  void check_time(bool missed, const std::string& file, const std::string& what) {
    if ((!missed && ++calls_ % 64 != 0) || now() < end_) return;
    throw Error(ErrorKind::capacity, file, what, "", "matching the pattern takes too long");
  }

 private:
  // Returns this thread's processor time, which other load on the machine does not affect.
  static double now() {
    struct timespec t = {};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  }

  size_t bytes_, kept_;
  double end_;
  unsigned calls_ = 0;
};

}  // namespace stet
