// The normalizer of tokenizer.json, which changes text before it is split.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/pattern.hpp"

namespace stet {

class JsonNode;
class TextBudget;

class Normalizer {
 public:
  Normalizer() = default;  // changes nothing
  // Parses Replace, Prepend, NFC, NFD, NFKC, NFKD, Lowercase, Strip and Sequence. Throws an
  // unsupported Error for others. A build without utf8proc supports no Unicode normalizer but NFC.
  static Normalizer parse(const JsonNode& node);

  bool empty() const { return steps_.empty(); }
  // Returns the normalized text; both are valid UTF-8. Throws a capacity Error if the budget is
  // exceeded. Without utf8proc throws an unsupported Error for text that NFC might change.
  std::string apply(std::string_view text, TextBudget& budget) const;

 private:
  enum class Kind { replace, prepend, form, lowercase, strip };
  struct Step {
    Kind kind;
    std::optional<Pattern> pattern{};      // replace
    std::string text{};                    // replace, prepend
    bool compose = false, compat = false;  // form
    std::string file{}, field{};           // form, for errors
    bool left = false, right = false;      // strip
  };

  void add(const JsonNode& node);

  std::vector<Step> steps_;
};

// Returns the text with each match replaced.
std::string replace_all(std::string_view text, const Pattern& pattern, std::string_view replacement,
                        TextBudget& budget);

}  // namespace stet
