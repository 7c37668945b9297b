// The normalizer of tokenizer.json: what happens to text before it is split.
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
  // Replace, Prepend, NFC, NFD, NFKC, NFKD, Lowercase, Strip, Sequence. Throws Error: unsupported
  // for others, and for those but NFC that need utf8proc in a build without it.
  static Normalizer parse(const JsonNode& node);

  bool empty() const { return steps_.empty(); }
  // Text is valid UTF-8, and so is the result. Throws Error: capacity when the budget is spent;
  // unsupported, without utf8proc, for text that NFC might change.
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

// The string with each match replaced.
std::string replace_all(std::string_view text, const Pattern& pattern, std::string_view replacement,
                        TextBudget& budget);

}  // namespace stet
