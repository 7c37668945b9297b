// The pre-tokenizer of tokenizer.json, which splits text into words. Merges stay within words.
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

// A part of a text. `first` is set if it begins where the whole input begins.
struct Word {
  std::string_view text;
  bool first;
};

class PreTokenizer {
 public:
  PreTokenizer() = default;  // the text is one word
  // Parses Sequence, Split, Digits, ByteLevel, Metaspace, Whitespace, WhitespaceSplit, Punctuation
  // and CharDelimiterSplit. Throws an unsupported Error for others, and for ByteLevel except at the
  // end.
  static PreTokenizer parse(const JsonNode& node);

  // Returns whether the model's pieces are bytes in GPT-2's alphabet. Words keep plain bytes in any
  // case.
  bool byte_level() const { return byte_level_; }

  // Returns the words. Words that differ from the input, such as those with an added space, live in
  // `made`.
  std::vector<Word> split(Word text, std::deque<std::string>& made, TextBudget& budget) const;

 private:
  enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };
  enum class Prefix { never, first, always };
  struct Step {
    std::string space{};  // Metaspace: replaces ' ' from here on; else ""
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
