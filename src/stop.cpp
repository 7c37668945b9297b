#include "stet/generate/stop.hpp"

#include <algorithm>
#include <utility>

#include "stet/base/error.hpp"

namespace stet {
namespace {

constexpr size_t kLongest = size_t{1} << 16;

std::vector<size_t> failure_function(const std::string& s) {
  std::vector<size_t> failure(s.size() + 1, 0);
  size_t length = 0;
  for (size_t n = 2; n <= s.size(); ++n) {
    while (length > 0 && s[n - 1] != s[length]) length = failure[length];
    if (s[n - 1] == s[length]) ++length;
    failure[n] = length;
  }
  return failure;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> strings) : strings_(std::move(strings)) {
  for (size_t i = 0; i < strings_.size(); ++i) {
    const size_t size = strings_[i].size();
    if (size == 0 || size > kLongest) {
      throw Error(ErrorKind::argument, "", "stop[" + std::to_string(i) + "]", "1 to 65536 bytes",
                  std::to_string(size));
    }
    failure_.push_back(failure_function(strings_[i]));
  }
  matched_.resize(strings_.size());
}

void StopMatcher::reset() {
  pending_.clear();
  std::fill(matched_.begin(), matched_.end(), size_t{0});
}

// Takes one byte; returns the longest beginning of any string that the text now ends with. *stop
// becomes the longest string that this completes, if there is one.
size_t StopMatcher::advance(unsigned char byte, int* stop) {
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

StopMatcher::Result StopMatcher::push(std::string_view piece) {
  Result result;
  result.text = std::exchange(pending_, {});
  size_t held = result.text.size();
  for (const char c : piece) {
    ++result.consumed;
    result.text += c;
    held = advance(static_cast<unsigned char>(c), &result.stop);
    if (result.stop >= 0) {
      result.text.resize(result.text.size() - strings_[result.stop].size());
      reset();
      return result;
    }
  }
  pending_ = result.text.substr(result.text.size() - held);
  result.text.resize(result.text.size() - held);
  return result;
}

std::string StopMatcher::flush() {
  std::string text = std::move(pending_);
  reset();
  return text;
}

void StopMatcher::restore(const std::string& pending) {
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
