// The JSON of a request, bounded by one scan before the parser builds anything of it.
#include <fmt/format.h>

#include <algorithm>

#include "src/base/json_value.hpp"
#include "stet/base/error.hpp"
#include "tools/serve/fields.hpp"

namespace stet::serve {
namespace {

constexpr size_t kMostLevels = 32, kMostValues = size_t{1} << 20;

// Walks over a JSON text once. It judges how values follow each other; what stands in numbers and
// strings is left to the parser.
class Scan {
 public:
  explicit Scan(std::string_view text) : text_(text) {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;
  }

  void run() {
    if (peek() != '{') fail("a JSON object");
    do take_value();
    while (follows_value());
    if (peek() != '\0' || at_ < text_.size()) fail("the end of the body");
  }

 private:
  // Skips white space. Returns the byte behind it, 0 at the end.
  char peek() {
    at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size());
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }

  // Takes a value that stands alone, or what opens containers up to the first such value in them.
  void take_value() {
    for (;;) {
      const char c = peek();
      if (++values_ > kMostValues) refuse(fmt::format("JSON of at most {} values", kMostValues));
      if (c == '"') return take_string();
      if (c != '{' && c != '[') return take_word();
      if (open_.size() == kMostLevels)
        refuse(fmt::format("JSON of at most {} levels", kMostLevels));
      ++at_;
      open_ += c == '{' ? '}' : ']';
      if (take(open_.back())) return open_.pop_back();
      if (c == '{') take_key("a key in quotes, or '}'");
    }
  }

  // Closes the containers that end behind a value. Returns whether another value comes.
  bool follows_value() {
    for (; !open_.empty(); open_.pop_back()) {
      if (take(',')) {
        if (open_.back() == '}') take_key("a key in quotes");
        return true;
      }
      if (!take(open_.back())) fail(fmt::format("',' or '{}'", open_.back()));
    }
    return false;
  }

  void take_key(const char* expected) {
    if (peek() != '"') fail(expected);
    take_string();
    if (!take(':')) fail("':'");
  }

  void take_string() {
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (static_cast<unsigned char>(text_[at_]) < 0x20)
        fail("an escape such as \\n in place of a control character");
      if (text_[at_] == '\\') ++at_;
    }
    at_ = std::min(at_, text_.size());
    if (at_ == text_.size()) fail("'\"' at the end of a string");
    ++at_;
  }

  // true, false, null or a number.
  void take_word() {
    const size_t end = std::min(text_.find_first_of(" \t\r\n,:[]{}\"", at_), text_.size());
    const std::string_view word = text_.substr(at_, end - at_);
    const bool number = !word.empty() && (word[0] == '-' || (word[0] >= '0' && word[0] <= '9'));
    if (!number && word != "true" && word != "false" && word != "null")
      fail(!open_.empty() && open_.back() == ']' ? "a value, or ']' where the list ends"
                                                 : "a value");
    at_ = end;
  }

  [[noreturn]] void refuse(const std::string& expected) const { stop(expected, "more"); }
  [[noreturn]] void fail(const std::string& expected) const {
    constexpr size_t kShown = 20;
    stop(expected, at_ == text_.size() ? "the end of the body"
                                       : printable(std::string(text_.substr(at_, kShown)), kShown));
  }
  [[noreturn]] void stop(const std::string& expected, const std::string& found) const {
    const std::string_view before = text_.substr(0, at_);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    throw RequestError(400, "invalid_json",
                       fmt::format("line {}, column {}: expected {}, found {}", line,
                                   at_ - (before.rfind('\n') + 1) + 1, expected, found));
  }

  std::string_view text_;
  size_t at_ = 0, values_ = 0;
  std::string open_;  // what closes each container that is open
};

}  // namespace

Json parse_body(const std::string& body) {
  Scan(body).run();
  try {
    return parse_ordered_json(body, "");
  } catch (const Error& e) {
    throw RequestError(400, "invalid_json",
                       fmt::format("{}{}expected {}, found {}", printable(e.field, 200),
                                   e.field.empty() ? "" : ": ", printable(e.expected, 200),
                                   printable(e.found, 60)));
  }
}

}  // namespace stet::serve
