// Stop strings in streamed text. A stop string may span several tokens, so text that could be its
// beginning is held back until the following text decides.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stet/base/error.hpp"

namespace stet {

// Matches stop strings bytewise. The first stop string to be completed wins; among those completed
// by the same byte, the longest. The result therefore does not depend on how the text was cut into
// pieces.
//
// Time is linear in the text for each stop string. If text arrives in whole UTF-8 characters, it
// leaves in whole characters, provided that the stop strings are well-formed.
class StopMatcher {
 public:
  struct Result {
    std::string text;     // may be shown now: precedes the stop string and text held back
    int stop = -1;        // index of the completed stop string; -1: none
    size_t consumed = 0;  // bytes of the piece up to the end of the stop string, or all
  };

  // Throws an argument Error for an empty string or one of more than 65536 bytes. With no strings,
  // everything passes.
  explicit StopMatcher(std::vector<std::string> strings);

  // Processes the next piece of text. After a stop, matching starts afresh with nothing held back,
  // and the rest of the piece has not been read.
  Result push(std::string_view piece);

  // Returns the text held back, which is the matcher's whole state: the longest end of the text
  // that is a beginning of a stop string.
  const std::string& pending() const { return pending_; }

  // Ends the text without a stop and returns the text held back. Starts afresh.
  std::string flush();

  // Restores a saved pending(). Throws an argument Error, and changes nothing, if a matcher of
  // these strings could not have held back this text.
  void restore(const std::string& pending);

  const std::vector<std::string>& strings() const { return strings_; }

 private:
  void reset();
  size_t advance(unsigned char byte, int* stop);

  std::vector<std::string> strings_;
  // failure_[i][n]: length of the longest proper prefix of strings_[i] that ends its first n bytes
  // (Knuth, Morris, Pratt 1977).
  std::vector<std::vector<size_t>> failure_;
  std::vector<size_t> matched_;  // [strings]: length of the prefix of each that the text ends with
  std::string pending_;
};

namespace detail {

constexpr size_t kLongest = size_t{1} << 16;

inline std::vector<size_t> failure_function(const std::string& s) {
  std::vector<size_t> failure(s.size() + 1, 0);
  size_t length = 0;
  for (size_t n = 2; n <= s.size(); ++n) {
    while (length > 0 && s[n - 1] != s[length]) length = failure[length];
    if (s[n - 1] == s[length]) ++length;
    failure[n] = length;
  }
  return failure;
}

}  // namespace detail

inline StopMatcher::StopMatcher(std::vector<std::string> strings) : strings_(std::move(strings)) {
  for (size_t i = 0; i < strings_.size(); ++i) {
    const size_t size = strings_[i].size();
    if (size == 0 || size > detail::kLongest) {
      throw Error(ErrorKind::argument, "", "stop[" + std::to_string(i) + "]", "1 to 65536 bytes",
                  std::to_string(size));
    }
    failure_.push_back(detail::failure_function(strings_[i]));
  }
  matched_.resize(strings_.size());
}

inline void StopMatcher::reset() {
  pending_.clear();
  std::fill(matched_.begin(), matched_.end(), size_t{0});
}

// Processes one byte. Returns the length of the longest prefix of any string that the text now ends
// with. Sets *stop to the longest string that this byte completes, if any.
inline size_t StopMatcher::advance(unsigned char byte, int* stop) {
  size_t longest = 0;
  size_t stop_size = 0;
  for (size_t i = 0; i < strings_.size(); ++i) {
    const std::string& s = strings_[i];
    size_t& n = matched_[i];
    while (n > 0 && static_cast<unsigned char>(s[n]) != byte) n = failure_[i][n];
    if (static_cast<unsigned char>(s[n]) == byte) ++n;
    longest = std::max(longest, n);
    if (n == s.size() && n > stop_size) {
      *stop = static_cast<int>(i);
      stop_size = n;
    }
  }
  return longest;
}

inline StopMatcher::Result StopMatcher::push(std::string_view piece) {
  Result result;
  result.text = std::exchange(pending_, {});
  size_t held = result.text.size();
  for (const char c : piece) {
    ++result.consumed;
    result.text += c;
    held = advance(static_cast<unsigned char>(c), &result.stop);
    if (result.stop >= 0) {
      result.text.resize(result.text.size() - strings_[static_cast<size_t>(result.stop)].size());
      reset();
      return result;
    }
  }
  pending_ = result.text.substr(result.text.size() - held);
  result.text.resize(result.text.size() - held);
  return result;
}

inline std::string StopMatcher::flush() {
  std::string text = std::move(pending_);
  reset();
  return text;
}

inline void StopMatcher::restore(const std::string& pending) {
  const std::string before = std::exchange(pending_, {});
  const std::vector<size_t> matched = matched_;
  reset();
  const Result result = push(pending);
  if (result.stop < 0 && result.text.empty()) return;
  pending_ = before;
  matched_ = matched;
  throw Error(ErrorKind::argument, "", "pending stop text", "the beginning of a stop string",
              '"' + printable(pending) + '"');
}

}  // namespace stet
