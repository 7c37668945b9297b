// What normalizers and pre-tokenizers look for: a literal string, or a regular expression: a known
// one, or any through PCRE2.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "src/text/known_patterns.hpp"

namespace stet {

class JsonNode;
class TextBudget;

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

  // Finds matches in one text, from left to right; empty ones are passed over.
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
