#include "src/text/pretokenize.hpp"

#include <algorithm>

#include "src/text/normalize.hpp"
#include "src/text/text_budget.hpp"
#include "src/text/tokenizer_json.hpp"
#include "stet/base/error.hpp"
#include "stet/text/utf8.hpp"

namespace stet {
namespace {

// GPT-2's pattern (Radford et al. 2019).
constexpr const char* kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Returns \w+|[^\w\s]+ in the sense of Rust's regex, which the `tokenizers` library uses here.
std::string rust_words() {
  const std::string word = std::string(kUnicodeWord) + kJoiners;
  return "[" + word + "]+|[^" + word + "\\s]+";
}

}  // namespace

PreTokenizer PreTokenizer::parse(const JsonNode& node) {
  PreTokenizer pre;
  pre.add(node);
  return pre;
}

PreTokenizer::Behavior PreTokenizer::parse_behavior(const JsonNode& node) {
  const std::string name = node.string();
  if (name == "Removed") return Behavior::removed;
  if (name == "Isolated") return Behavior::isolated;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  node.unsupported("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

void PreTokenizer::add_split(Pattern pattern, Behavior behavior, bool invert) {
  steps_.push_back({.pattern = std::move(pattern), .behavior = behavior, .invert = invert});
}

void PreTokenizer::add(const JsonNode& node) {
  const JsonNode type_node = node.at("type");
  const std::string type = type_node.string();
  if (byte_level_) type_node.unsupported("nothing after ByteLevel");
  if (steps_.size() == kMaxSteps)
    node.fail("at most " + std::to_string(kMaxSteps) + " pre-tokenizers");
  const auto regex = [&](const std::string& source) {
    return Pattern::regex(source, node.file(), type_node.path());
  };
  if (type == "Sequence") {
    for (const JsonNode& part : node.at("pretokenizers").elements()) add(part);
  } else if (type == "Split") {
    add_split(Pattern::parse(node.at("pattern")), parse_behavior(node.at("behavior")),
              node.boolean_or("invert", false));
  } else if (type == "Digits") {
    add_split(regex(R"(\p{N})"), node.boolean_or("individual_digits", false)
                                     ? Behavior::isolated
                                     : Behavior::contiguous);
  } else if (type == "ByteLevel") {
    byte_level_ = true;
    Step step;
    if (node.boolean_or("add_prefix_space", true)) {
      step.prefix = Prefix::always;
      step.prefix_text = " ";
    }
    if (node.boolean_or("use_regex", true)) step.pattern = regex(kGpt2);
    steps_.push_back(std::move(step));
  } else if (type == "Metaspace") {
    Step step;
    utf8_append(step.space, node.at("replacement").character());
    const std::string scheme = node.string_or(
        "prepend_scheme", node.boolean_or("add_prefix_space", true) ? "always" : "never");
    if (scheme != "always" && scheme != "first" && scheme != "never") {
      node.at("prepend_scheme").unsupported("always, first or never");
    }
    step.prefix = scheme == "always"  ? Prefix::always
                  : scheme == "first" ? Prefix::first
                                      : Prefix::never;
    step.prefix_text = step.space;
    if (node.boolean_or("split", true)) step.pattern = Pattern::literal(step.space);
    step.behavior = Behavior::merged_with_next;
    steps_.push_back(std::move(step));
  } else if (type == "Whitespace") {
    add_split(regex(rust_words()), Behavior::removed, true);
  } else if (type == "WhitespaceSplit") {
    add_split(regex(R"(\s)"), Behavior::removed);
  } else if (type == "Punctuation") {
    const std::optional<JsonNode> behavior = node.find("behavior");
    add_split(regex(R"([!-/:-@\[-`{-~\p{P}])"),
              behavior ? parse_behavior(*behavior) : Behavior::isolated);
  } else if (type == "CharDelimiterSplit") {
    std::string delimiter;
    utf8_append(delimiter, node.at("delimiter").character());
    add_split(Pattern::literal(delimiter), Behavior::removed);
  } else {
    type_node.unsupported(
        "a pre-tokenizer of Sequence, Split, Digits, ByteLevel, Metaspace, Whitespace, "
        "WhitespaceSplit, "
        "Punctuation, CharDelimiterSplit");
  }
}

// Splits a word into matches and the text between them. The behavior decides which neighbours are
// joined to a word. An empty match separates its neighbours but is no word.
void PreTokenizer::split_word(const Step& step, Word word, std::vector<Word>& out,
                              TextBudget& budget) {
  const size_t start = out.size();
  bool after_match = false;
  const auto put = [&](size_t begin, size_t end, bool matched) {
    bool join = false;
    switch (step.behavior) {
      case Behavior::removed:
        if (matched) return;
        break;
      case Behavior::isolated:
        break;
      case Behavior::merged_with_previous:
        join = matched && !after_match;
        break;
      case Behavior::merged_with_next:
        join = !matched && after_match;
        break;
      case Behavior::contiguous:
        join = matched == after_match;
        break;
    }
    after_match = matched;
    if (join && out.size() > start) {
      const std::string_view last = out.back().text;
      out.back().text = {last.data(), last.size() + (end - begin)};
    } else {
      out.push_back({word.text.substr(begin, end - begin), word.first && begin == 0});
    }
  };
  Pattern::Finder finder(*step.pattern, word.text, budget);
  size_t done = 0;
  for (Match m; finder.next(m); done = m.end) {
    if (m.begin > done) put(done, m.begin, step.invert);
    put(m.begin, m.end, !step.invert);
  }
  if (done < word.text.size()) put(done, word.text.size(), step.invert);
  const auto empty = [](const Word& part) { return part.text.empty(); };
  out.erase(std::remove_if(out.begin() + static_cast<std::ptrdiff_t>(start), out.end(), empty),
            out.end());
}

std::vector<Word> PreTokenizer::split(Word text, std::deque<std::string>& made,
                                      TextBudget& budget) const {
  std::vector<Word> words{text}, next;
  for (const Step& step : steps_) {
    for (Word& word : words) {
      if (!step.space.empty() && word.text.find(' ') != std::string_view::npos) {
        word.text =
            made.emplace_back(replace_all(word.text, Pattern::literal(" "), step.space, budget));
        budget.keep(word.text.size());
      }
      const bool wanted =
          step.prefix == Prefix::always || (step.prefix == Prefix::first && word.first);
      if (wanted && !word.text.empty() && !word.text.starts_with(step.prefix_text)) {
        word.text = made.emplace_back(step.prefix_text + std::string(word.text));
        budget.keep(word.text.size());
      }
    }
    if (!step.pattern) continue;
    next.clear();
    for (const Word& word : words) split_word(step, word, next, budget);
    std::swap(words, next);
  }
  return words;
}

}  // namespace stet
