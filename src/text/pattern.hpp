// What normalizers and pre-tokenizers look for: a literal string, or a regular expression: a known
// one, or any through PCRE2.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "src/text/known_patterns.hpp"

namespace stet {

class JsonNode;
class TextBudget;

// \w of Unicode but for joiners, to be written inside a class: letters, marks, digits, numbers that
// are letters, connectors.
inline constexpr const char* kUnicodeWord =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";
// To which Rust's regex counts joiners, and Oniguruma does not.
inline constexpr const char* kJoiners = R"(\x{200C}\x{200D})";

struct Match {
  size_t begin, end;
};

class Pattern {
 public:
  static Pattern literal(std::string text);
  // `what` names it in errors. Throws Error: unsupported for one that is not known, without PCRE2.
  static Pattern regex(const std::string& source, const std::string& file, const std::string& what);
  // {"String": ...} or {"Regex": ...}, the latter in Oniguruma's syntax as far as it is PCRE2's
  // too.
  static Pattern parse(const JsonNode& node);

  // Finds matches in one text, from left to right. An empty one counts, unless the match before it
  // ended there: so the iterator of the `tokenizers` library finds them.
  class Finder {
   public:
    // The text is valid UTF-8 and outlives the finder, like the pattern and the budget.
    Finder(const Pattern& pattern, std::string_view text, TextBudget& budget);
    ~Finder();
    // Throws Error: capacity when PCRE2 gives up, or the budget is spent.
    bool next(Match& match);

   private:
    struct Regex;
    int match_from(size_t at);
    bool next_of_regex(Match& match);
    const Pattern& pattern_;
    std::string_view text_;
    TextBudget& budget_;
    size_t at_ = 0;
    size_t last_end_ = SIZE_MAX;  // of the last match; SIZE_MAX before the first
    std::unique_ptr<Regex> regex_;
  };

 private:
  struct Compiled;
  static Pattern compile(const std::string& source, const std::string& file,
                         const std::string& what);
  std::string literal_;
  std::optional<KnownPattern> known_;
  std::shared_ptr<const Compiled> compiled_;  // of neither a literal nor a known pattern
};

}  // namespace stet
