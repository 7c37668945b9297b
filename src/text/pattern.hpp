// Patterns of normalizers and pre-tokenizers: literal strings, known regular expressions, and with
// PCRE2 any others.
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

// Unicode's \w without joiners, for use in a class: letters, marks, digits, letter numbers and
// connectors.
inline constexpr const char* kUnicodeWord =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";
// Joiners, which belong to \w in Rust's regex but not in Oniguruma.
inline constexpr const char* kJoiners = R"(\x{200C}\x{200D})";

struct Match {
  size_t begin, end;
};

class Pattern {
 public:
  static Pattern literal(std::string text);
  // `what` names the pattern in errors. Without PCRE2, throws an unsupported Error for an unknown
  // pattern.
  static Pattern regex(const std::string& source, const std::string& file, const std::string& what);
  // Parses {"String": ...} or {"Regex": ...}. A regex has Oniguruma's syntax. Constructs that PCRE2
  // reads differently are refused.
  static Pattern parse(const JsonNode& node);

  // Finds matches in one text from left to right. As in the `tokenizers` library, an empty match
  // counts unless the previous match ended there.
  class Finder {
   public:
    // The text must be valid UTF-8. Text, pattern and budget must outlive the finder.
    Finder(const Pattern& pattern, std::string_view text, TextBudget& budget);
    ~Finder();
    // Throws a capacity Error if PCRE2 gives up or the budget is exceeded.
    bool next(Match& match);

   private:
    struct Regex;
    int match_from(size_t at);
    bool next_of_regex(Match& match);
    const Pattern& pattern_;
    std::string_view text_;
    TextBudget& budget_;
    size_t at_ = 0;
    size_t last_end_ = SIZE_MAX;  // end of the last match; SIZE_MAX before the first
    std::unique_ptr<Regex> regex_;
  };

 private:
  struct Compiled;
  static Pattern compile(const std::string& source, const std::string& file,
                         const std::string& what);
  std::string literal_;
  std::optional<KnownPattern> known_;
  std::shared_ptr<const Compiled> compiled_;  // null for literals and known patterns
};

}  // namespace stet
