// Stop strings over streamed text. A stop string may be spread over many tokens, so text that could
// be the beginning of one is held back until the next text decides.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace stet {

// Compares bytes. The first stop string that is completed wins; of several completed by the same
// byte the longest one. So the outcome does not depend on how the text was cut into pieces. Time is
// linear in the text, for each stop string. Text given in whole UTF-8 characters comes out in whole
// characters, as long as the stop strings are well-formed.
class StopMatcher {
 public:
  struct Result {
    std::string text;     // may be shown now: before the stop string, or before what is held back
    int stop = -1;        // index of the stop string that was completed, -1 for none
    size_t consumed = 0;  // bytes of the piece up to the end of the stop string, or all of it
  };

  // No strings: everything passes. An empty string, or one of more than 65536 bytes, is an argument
  // Error.
  explicit StopMatcher(std::vector<std::string> strings);

  // The next piece of text. After a stop, matching starts afresh with nothing held back: the rest
  // of the piece was not read.
  Result push(std::string_view piece);

  // The text held back, which is all of the matcher's state: at every moment the longest end of the
  // text that is a beginning of a stop string.
  const std::string& pending() const { return pending_; }

  // Ends the text without a stop: what was held back may be shown after all. Starts afresh.
  std::string flush();

  // Goes on from a saved pending(). An argument Error, with nothing changed, if no matcher of these
  // strings could have held back this text.
  void restore(const std::string& pending);

  const std::vector<std::string>& strings() const { return strings_; }

 private:
  void reset();
  size_t advance(unsigned char byte, int* stop);

  std::vector<std::string> strings_;
  // failure_[i][n]: length of the longest proper beginning of strings_[i] that ends its first n
  // bytes (Knuth, Morris, Pratt 1977).
  std::vector<std::vector<size_t>> failure_;
  std::vector<size_t> matched_;  // [strings]: how long a beginning of each the text ends with
  std::string pending_;
};

}  // namespace stet
