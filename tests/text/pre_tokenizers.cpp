// Words as the `tokenizers` library splits them; it gave the expected results.
#include <deque>

#include "src/gguf/vocabulary_rules.hpp"
#include "src/text/pretokenize.hpp"
#include "src/text/text_budget.hpp"
#include "src/text/tokenizer_json.hpp"
#include "stet/checkpoint/gguf.hpp"
#include "tests/support/files.hpp"
#include "tests/text/tokenizer_testing.hpp"

namespace stet::test::pre_tokenizers_tests {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

const std::string kData = STET_ROOT "/tests/data/tokenizer/";

Words words_of(const json& pre_tokenizer, const std::string& text) {
  std::deque<std::string> made;
  TextBudget budget(text.size());
  Words words;
  const PreTokenizer pre = PreTokenizer::parse(JsonNode(pre_tokenizer, "t", ""));
  for (const Word& word : pre.split({text, true}, made, budget)) words.emplace_back(word.text);
  return words;
}

json rules(const std::string& name) {
  return json::parse(pre_tokenizer_json(*find_vocabulary_rules(name)).dump());
}

json added(int id, const std::string& text, const json& more = json::object()) {
  json token = {{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", false}};
  token.update(more);
  return token;
}

Ids ids_with(const json& tokens, const std::string& text) {
  json document = small_json();
  document["added_tokens"] = tokens;
  return from_json(document)->encode(text, Bos::off);
}

}  // namespace

TEST(PreTokenizers, AnEmptyMatchPartsTheText) {
  NEEDS(Pcre2);
  const json cases = json::parse(read_text(kData + "zero_width.json"));
  EXPECT_GT(cases.size(), 150u);
  for (const json& entry : cases)
    EXPECT_EQ(words_of(entry[0], entry[1]), entry[2].get<Words>()) << entry;
}

TEST(PreTokenizers, NumbersInThreesFromTheRight) {
  NEEDS(Pcre2);
  EXPECT_EQ(words_of(rules("superbpe"), "1234567 is 12 of 1000"),
            (Words{"1", "234", "567", " is ", "12", " of ", "1", "000"}));
}

TEST(PreTokenizers, AnEmptyMatchIsReplacedToo) {
  NEEDS(Pcre2);
  json document = small_json();
  document["normalizer"] = {
      {"type", "Replace"}, {"pattern", {{"Regex", "(?=b)"}}}, {"content", "_"}};
  EXPECT_EQ(from_json(document)->encode("abb", Bos::off), (Ids{1, 7, 2, 7, 2}));
}

TEST(PreTokenizers, NamedRulesSplitLikeTheModels) {
  NEEDS(Pcre2);
  const json published = json::parse(read_text(kData + "pre_tokenizers.json"));
  EXPECT_EQ(published.size(), 12u);
  for (const auto& [name, cases] : published.items()) {
    for (const json& entry : cases)
      EXPECT_EQ(words_of(rules(name), entry[0]), entry[1].get<Words>()) << name << entry[0];
  }
}

TEST(PreTokenizers, AllNamesAreKnown) {
  for (const std::string& name : pre_tokenizer_names()) {
    ASSERT_NE(find_vocabulary_rules(name), nullptr) << name;
    // A name is recovered from its rules, or is another name with the same rules.
    json tokenizer = {{"pre_tokenizer", rules(name)},
                      {"model", {{"ignore_merges", find_vocabulary_rules(name)->ignore_merges}}}};
    const VocabularyRules* const back = vocabulary_rules_of(tokenizer);
    ASSERT_NE(back, nullptr) << name;
    EXPECT_EQ(rules(back->name), rules(name));
    EXPECT_EQ(back->ignore_merges, find_vocabulary_rules(name)->ignore_merges) << name;
  }
  EXPECT_EQ(find_vocabulary_rules("lyrics"), nullptr);
}

TEST(AddedTokens, WithinWhiteSpaceOfAnotherToken) {
  const json taking = {added(9, "<a>", {{"rstrip", true}}), added(10, "\n")};
  EXPECT_EQ(ids_with(taking, "<a>\n b"), (Ids{9, 10, 6, 2}));
  EXPECT_EQ(ids_with(taking, "<a>\n\n  b"), (Ids{9, 10, 10, 6, 6, 2}));
  EXPECT_EQ(ids_with(taking, "<a> \n a\n"), (Ids{9, 10, 6, 1, 10}));
  EXPECT_EQ(ids_with(taking, "a<a>  b"), (Ids{1, 9, 2}));
  EXPECT_EQ(ids_with(taking, "<a>\n"), (Ids{9, 10}));
  EXPECT_EQ(ids_with(taking, "\n<a>\n<a>"), (Ids{10, 9, 10, 9}));
  const json both = {added(9, "<a>", {{"rstrip", true}}), added(10, "\n", {{"rstrip", true}}),
                     added(11, "  ")};
  EXPECT_EQ(ids_with(both, "<a>\n\n b"), (Ids{9, 10, 10, 2}));
  EXPECT_EQ(ids_with(both, "<a>  \n  a"), (Ids{9, 11, 10, 11, 1}));
  EXPECT_EQ(ids_with(both, "  \n  \n"), (Ids{11, 10, 11, 10}));
  const json before = {added(9, "<a>", {{"lstrip", true}}), added(10, "\n")};
  EXPECT_EQ(ids_with(before, "b \n <a>"), (Ids{2, 6, 10, 9}));
  EXPECT_EQ(ids_with(before, "\n\n<a>"), (Ids{10, 10, 9}));
  EXPECT_EQ(ids_with(before, "b  <a>"), (Ids{2, 9}));
}

// Each newline would look at all that follow it.
TEST(AddedTokens, ManyStrippingTokensTakeLinearTime) {
  const json newline = json::array({added(9, "\n", {{"rstrip", true}})});
  const std::string text(1'000'000, '\n');
  EXPECT_EQ(ids_with(newline, text), Ids(text.size(), 9));
}

TEST(AddedTokens, JoinersBelongToWords) {
  NEEDS(Pcre2);
  const json word = json::array({added(9, "bb", {{"single_word", true}})});
  EXPECT_EQ(ids_with(word, "a\u200Dbb"), (Ids{1, 0, 2, 2}));
  EXPECT_EQ(ids_with(word, "bb\u200C bb"), (Ids{2, 2, 0, 6, 9}));
  EXPECT_EQ(ids_with(word, "\u00B2bb"), (Ids{0, 9}));
  EXPECT_EQ(ids_with(word, "bb\u00BC"), (Ids{9, 0}));
  EXPECT_EQ(ids_with(word, "bb \u24D0bb"), (Ids{9, 6, 0, 2, 2}));
  EXPECT_EQ(ids_with(word, "\u0301bb"), (Ids{0, 2, 2}));
}

}  // namespace stet::test::pre_tokenizers_tests
