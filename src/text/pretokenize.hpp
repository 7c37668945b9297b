// The pre-tokenizer of tokenizer.json: the words that merges stay within.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/pattern.hpp"

namespace stet {

class JsonNode;
class TextBudget;

// Part of a text. `first`: it begins where the whole input begins.
struct Word {
  std::string_view text;
  bool first;
};

class PreTokenizer {
 public:
  PreTokenizer() = default;  // the text is one word
  // Sequence, Split, Digits, ByteLevel, Metaspace, Whitespace, WhitespaceSplit, Punctuation,
  // CharDelimiterSplit. Throws Error: unsupported for others, and for ByteLevel anywhere but at the
  // end.
  static PreTokenizer parse(const JsonNode& node);

  // The model's pieces are bytes, written in GPT-2's alphabet; words stay in plain bytes.
  bool byte_level() const { return byte_level_; }

  // Words that had to be made (a space put before them) are kept alive in `made`.
  std::vector<Word> split(Word text, std::deque<std::string>& made, TextBudget& budget) const;

 private:
  enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };
  enum class Prefix { never, first, always };
  struct Step {
    std::string space{};  // Metaspace: stands for ' ' from here on; "" otherwise
    std::string prefix_text{};
    Prefix prefix = Prefix::never;
    std::optional<Pattern> pattern{};
    Behavior behavior = Behavior::isolated;
    bool invert = false;
  };

  void add(const JsonNode& node);
  void add_split(Pattern pattern, Behavior behavior, bool invert = false);
  static Behavior parse_behavior(const JsonNode& node);
  static void split_word(const Step& step, Word word, std::vector<Word>& out, TextBudget& budget);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace stet
