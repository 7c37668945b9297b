#include <random>

#include "tests/support/files.hpp"
#include "tests/text/tokenizer_testing.hpp"

namespace stet::test::tokenizer_json_tests {
namespace {

class GoldenTokenizer : public testing::TestWithParam<const char*> {};

// Compares with transformers' results for the texts of `directory`, except that a text that begins
// with bos gets no second one here. Returns the number of texts.
size_t expect_golden_texts(const std::string& directory) {
  const auto tokenizer = Tokenizer::load(directory);
  const auto golden = nlohmann::json::parse(read_text(directory + "/golden.json"));
  for (const auto& entry : golden["encode"]) {
    const std::string text = entry["text"];
    const Ids ids = entry["ids"], with_special = entry["with_special"];
    const bool twice = with_special.size() > 1 && tokenizer->bos() == with_special[0] &&
                       tokenizer->bos() == with_special[1];
    const Ids once(with_special.begin() + (twice ? 1 : 0), with_special.end());
    EXPECT_EQ(tokenizer->encode(text, Bos::off), ids) << text;
    EXPECT_EQ(tokenizer->encode(text, Bos::automatic), once) << text;
    EXPECT_EQ(tokenizer->decode(ids, false), std::string(entry["decoded"])) << text;
    EXPECT_EQ(tokenizer->decode(with_special, true), std::string(entry["decoded_skip_special"]))
        << text;
    EXPECT_EQ(streamed(*tokenizer, ids, false), std::string(entry["decoded"])) << text;
  }
  return golden["encode"].size();
}

}  // namespace

// Uses the part of the tokenizers and texts that reduce_tokenizer.py made, which is always
// available.
TEST_P(GoldenTokenizer, ShortTextsEncodeAndDecodeAsTransformersDoes) {
  EXPECT_EQ(expect_golden_texts(STET_ROOT "/tests/data/tokenizer/" + std::string(GetParam())),
            166u);
}

TEST_P(GoldenTokenizer, EveryTextEncodesAndDecodesAsTransformersDoes) {
  const std::string directory = fixtures() + "/tokenizers/" + GetParam();
  NEEDS_FIXTURE(directory);
  EXPECT_EQ(expect_golden_texts(directory), 255u);
  const auto tokenizer = Tokenizer::load(directory);
  const auto golden = nlohmann::json::parse(read_text(directory + "/golden.json"));
  for (const auto& entry : golden["chat"]) {
    if (!entry.contains("text")) continue;
    EXPECT_EQ(tokenizer->encode(std::string(entry["text"]), Bos::off), Ids(entry["ids"]));
  }
}

TEST_P(GoldenTokenizer, NoSpecialTokenComesOutOfTextThatIsNotTrusted) {
  const std::string directory = fixtures() + "/tokenizers/" + GetParam();
  NEEDS_FIXTURE(directory);
  const auto tokenizer = Tokenizer::load(directory);
  std::string text;
  Ids special;
  for (int32_t id = 0; id < tokenizer->size(); ++id) {
    if (!tokenizer->is_special(id)) continue;
    text += tokenizer->piece(id) + "x";
    special.push_back(id);
  }
  ASSERT_GT(special.size(), 0u);
  Ids found;
  for (const int32_t id : tokenizer->encode(text, Bos::off)) {
    if (tokenizer->is_special(id)) found.push_back(id);
  }
  EXPECT_EQ(found, special);
  const Ids plain = tokenizer->encode(text, Bos::off, false);
  for (const int32_t id : plain) EXPECT_FALSE(tokenizer->is_special(id)) << id;
  EXPECT_EQ(tokenizer->decode(plain, true), text);
}

INSTANTIATE_TEST_SUITE_P(Real, GoldenTokenizer, testing::Values("gpt2", "llama3_1", "gemma3"));

namespace {

using nlohmann::json;

// Returns the ids of a text under small_json with a few changed fields.
Ids ids_of(const json& changes, const std::string& text, bool special_in_text = true) {
  json document = small_json();
  if (!changes.is_null()) document.merge_patch(changes);
  return from_json(document)->encode(text, Bos::off, special_in_text);
}

std::string error_with(const json& changes) {
  json document = small_json();
  if (!changes.is_null()) document.merge_patch(changes);
  return message_of([&] { from_json(document); });
}

// Returns the words that a pre-tokenizer makes of a text. Every possible word is a piece of the
// vocabulary.
std::vector<std::string> words_of(const json& pre_tokenizer, const std::string& text) {
  json document = small_json();
  json vocab = {{"<unk>", 0}};
  for (const std::string& form : {text, std::string("_").append(replaced(text, " ", "_"))}) {
    for (size_t begin = 0; begin < form.size(); ++begin) {
      for (size_t size = 1; begin + size <= form.size(); ++size) {
        const std::string piece = form.substr(begin, size);
        if (stet::utf8_valid(piece) && !vocab.contains(piece)) vocab[piece] = vocab.size();
      }
    }
  }
  document["model"]["vocab"] = vocab;
  document["model"]["merges"] = json::array();
  document["model"]["ignore_merges"] = true;
  document["pre_tokenizer"] = pre_tokenizer;
  const auto tokenizer = from_json(document);
  std::vector<std::string> words;
  for (const int32_t id : tokenizer->encode(text, Bos::off)) words.push_back(tokenizer->piece(id));
  return words;
}

using Words = std::vector<std::string>;

json split(const std::string& behavior, bool invert = false) {
  return {{"type", "Split"},
          {"pattern", {{"String", "-"}}},
          {"behavior", behavior},
          {"invert", invert}};
}

}  // namespace

TEST(TokenizerJson, MergesInOrderOfRank) {
  EXPECT_EQ(ids_of({}, "abc"), (Ids{5}));
  EXPECT_EQ(ids_of({}, "abab"), (Ids{4, 4}));
  EXPECT_EQ(ids_of({}, "_abc"), (Ids{7, 5}));  // "a b" was learned before "_ a"
  EXPECT_EQ(ids_of({}, "_a"), (Ids{8}));
  EXPECT_EQ(ids_of({{"model", {{"merges", {"_ a", "a b", "ab c"}}}}}, "_abc"), (Ids{8, 2, 3}));
}

TEST(TokenizerJson, EqualsTheDefinitionOnRandomVocabularies) {
  std::mt19937 random(4);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> pieces{"a", "b", "c", "\u00E9"};
    std::vector<std::pair<std::string, std::string>> merges;
    json document = small_json();
    json vocab = {{"a", 0}, {"b", 1}, {"c", 2}, {"\u00E9", 3}};
    while (merges.size() < 25) {
      const std::string left = pieces[random() % pieces.size()],
                        right = pieces[random() % pieces.size()];
      if (vocab.contains(left + right)) continue;
      vocab[left + right] = static_cast<int>(pieces.size());
      pieces.push_back(left + right);
      merges.emplace_back(left, right);
    }
    document["model"]["vocab"] = vocab;
    document["model"]["merges"] = merges;
    document["model"]["unk_token"] = nullptr;
    const auto tokenizer = from_json(document);
    std::string text;
    std::vector<std::string> symbols;
    for (size_t i = 0; i < 1 + random() % 200; ++i) {
      symbols.push_back(pieces[random() % 4]);
      text += symbols.back();
    }
    // Sennrich et al.: repeatedly merges the first occurrence of the earliest pair.
    for (bool merged = true; merged;) {
      merged = false;
      for (size_t m = 0; m < merges.size() && !merged; ++m) {
        for (size_t i = 0; i + 1 < symbols.size() && !merged; ++i) {
          if (symbols[i] != merges[m].first || symbols[i + 1] != merges[m].second) continue;
          symbols[i] += symbols[i + 1];
          symbols.erase(symbols.begin() + static_cast<long>(i) + 1);
          merged = true;
        }
      }
    }
    Ids expected;
    for (const std::string& symbol : symbols) expected.push_back(vocab[symbol]);
    EXPECT_EQ(tokenizer->encode(text, Bos::off), expected);
  }
}

TEST(TokenizerJson, UnknownCharacters) {
  EXPECT_EQ(ids_of({}, "azzb"), (Ids{1, 0, 0, 2}));
  EXPECT_EQ(ids_of({{"model", {{"fuse_unk", true}}}}, "azzb"), (Ids{1, 0, 2}));
  EXPECT_EQ(ids_of({{"model", {{"fuse_unk", true}}}}, "zz"), (Ids{0}));
  EXPECT_EQ(ids_of({{"model", {{"unk_token", nullptr}}}}, "azzb"),
            (Ids{4}));  // dropped, then merged
  const json fallback = {
      {"model", {{"byte_fallback", true}, {"vocab", {{"<0xC3>", 9}, {"<0xA9>", 10}}}}}};
  EXPECT_EQ(ids_of(fallback, "a\u00E9b"), (Ids{1, 9, 10, 2}));
  EXPECT_EQ(ids_of(fallback, "\u00E8"), (Ids{0}));  // some of its bytes are missing
}

TEST(TokenizerJson, PrefixAndSuffixOfSymbols) {
  const json changes = {
      {"model",
       {{"continuing_subword_prefix", "##"},
        {"end_of_word_suffix", "$"},
        {"vocab",
         {{"##b", 9}, {"##c$", 10}, {"a##b", nullptr}, {"##bc$", 11}, {"abc$", 12}, {"a$", 13}}},
        {"merges", {"##b ##c$", "a ##bc$"}}}}};
  EXPECT_EQ(ids_of(changes, "abc"), (Ids{12}));
  EXPECT_EQ(ids_of(changes, "a"), (Ids{13}));
  EXPECT_EQ(ids_of(changes, "bbc"), (Ids{2, 11}));
}

TEST(TokenizerJson, IgnoreMergesTakesWholeWords) {
  const json changes = {{"model", {{"vocab", {{"cba", 9}}}, {"ignore_merges", true}}}};
  EXPECT_EQ(ids_of(changes, "cba"), (Ids{9}));
  EXPECT_EQ(ids_of(changes, "cbab"), (Ids{3, 2, 4}));
}

TEST(TokenizerJson, SplitBehaviors) {
  EXPECT_EQ(words_of(split("Removed"), "a--b-"), (Words{"a", "b"}));
  EXPECT_EQ(words_of(split("Isolated"), "a--b-"), (Words{"a", "-", "-", "b", "-"}));
  EXPECT_EQ(words_of(split("MergedWithPrevious"), "a--b-"), (Words{"a-", "-", "b-"}));
  EXPECT_EQ(words_of(split("MergedWithNext"), "-a--b-"), (Words{"-a", "-", "-b", "-"}));
  EXPECT_EQ(words_of(split("Contiguous"), "a--b-"), (Words{"a", "--", "b", "-"}));
  EXPECT_EQ(words_of(split("Removed", true), "a--b-"), (Words{"-", "-", "-"}));
  EXPECT_EQ(words_of(split("MergedWithPrevious", true), "a--b-"), (Words{"a", "-", "-b", "-"}));
  EXPECT_EQ(words_of({{"type", "CharDelimiterSplit"}, {"delimiter", "-"}}, "a--b-"),
            (Words{"a", "b"}));
}

TEST(TokenizerJson, Metaspace) {
  const auto metaspace = [](const std::string& scheme, bool split_too) {
    return json{{"type", "Metaspace"},
                {"replacement", "_"},
                {"prepend_scheme", scheme},
                {"split", split_too}};
  };
  EXPECT_EQ(words_of(metaspace("always", true), "a  b"), (Words{"_a", "_", "_b"}));
  EXPECT_EQ(words_of(metaspace("never", true), "a  b"), (Words{"a", "_", "_b"}));
  EXPECT_EQ(words_of(metaspace("first", true), "a b"), (Words{"_a", "_b"}));
  EXPECT_EQ(words_of(metaspace("always", false), "a b"), (Words{"_a_b"}));
  EXPECT_EQ(words_of(metaspace("always", true), " a"), (Words{"_a"}));
  // The text after an added token does not count as the first word.
  json document = small_json();
  document["pre_tokenizer"] = metaspace("first", true);
  document["added_tokens"] = {{{"id", 9}, {"content", "<s>"}, {"special", true}}};
  EXPECT_EQ(from_json(document)->encode("a<s>a", Bos::off), (Ids{8, 9, 1}));
  document["pre_tokenizer"] = metaspace("always", true);
  EXPECT_EQ(from_json(document)->encode("a<s>a", Bos::off), (Ids{8, 9, 8}));
}

TEST(TokenizerJson, PreTokenizersWithPatterns) {
  EXPECT_EQ(words_of({{"type", "Digits"}, {"individual_digits", true}}, "a12 \u0663"),
            (Words{"a", "1", "2", " ", "\u0663"}));
  EXPECT_EQ(words_of({{"type", "Digits"}, {"individual_digits", false}}, "a12 3"),
            (Words{"a", "12", " ", "3"}));
  EXPECT_EQ(words_of({{"type", "WhitespaceSplit"}}, "a_1 b!?\n\u00A0c"),
            (Words{"a_1", "b!?", "c"}));
  const json sequence = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "WhitespaceSplit"}}, {{"type", "Digits"}, {"individual_digits", true}}}}};
  EXPECT_EQ(words_of(sequence, "a1 22"), (Words{"a", "1", "2", "2"}));
  NEEDS(Pcre2);
  EXPECT_EQ(words_of({{"type", "Whitespace"}}, "a_1 b!?\u00E9"),
            (Words{"a_1", "b", "!?", "\u00E9"}));
  EXPECT_EQ(words_of({{"type", "Punctuation"}}, "a,b$\u00BFc"),
            (Words{"a", ",", "b", "$", "\u00BF", "c"}));
  // U+180E is not white space, though PCRE2's \s matches it.
  const json spaces = {{"type", "Split"},
                       {"pattern", {{"Regex", "\\s+"}}},
                       {"behavior", "Removed"},
                       {"invert", false}};
  EXPECT_EQ(words_of(spaces, "a\u180Eb c"), (Words{"a\u180Eb", "c"}));
}

TEST(TokenizerJson, Normalizers) {
  const json prepend = {{"type", "Prepend"}, {"prepend", "_"}};
  const json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "_"}};
  const json both = {{"type", "Sequence"}, {"normalizers", {prepend, replace}}};
  EXPECT_EQ(ids_of({{"normalizer", both}}, "a b"), (Ids{8, 7, 2}));
  EXPECT_EQ(ids_of({{"normalizer", both}}, ""), Ids());
  const json strip = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", false}};
  EXPECT_EQ(ids_of({{"normalizer", strip}}, " \u3000a "), (Ids{1, 6}));
}

TEST(TokenizerJson, UnicodeNormalForms) {
  NEEDS(Utf8proc);
  const auto ids = [](const char* form, const std::string& text) {
    json document = small_json();
    document["normalizer"] = {{"type", form}};
    document["model"]["vocab"]["\u00E9"] = 9;
    document["model"]["vocab"]["\u0301"] = 10;
    document["model"]["vocab"]["e"] = 11;
    document["model"]["vocab"]["\u0316"] = 12;
    return from_json(document)->encode(text, Bos::off);
  };
  EXPECT_EQ(ids("NFC", "e\u0301"), (Ids{9}));
  EXPECT_EQ(ids("NFD", "\u00E9"), (Ids{11, 10}));
  EXPECT_EQ(ids("NFC", "e\u0316\u0301"), (Ids{9, 12}));  // the mark below does not block the accent
  EXPECT_EQ(ids("NFD", "e\u0301\u0316"), (Ids{11, 12, 10}));  // marks in canonical order
  EXPECT_EQ(ids("NFKC", "\uFF41\uFF42"), (Ids{4}));           // full-width a b
  EXPECT_EQ(ids("NFC", "\uFF41"), (Ids{0}));
  EXPECT_EQ(ids("NFKD", "\u2168"), (Ids{0, 0}));  // IX
  EXPECT_EQ(ids("Lowercase", "A\u00C9"), (Ids{1, 9}));
  EXPECT_EQ(ids("NFD", "\u1E14").size(), 3u);             // E macron grave
  EXPECT_EQ(ids("NFC", "\u1100\u1161\u11A8"), (Ids{0}));  // Hangul
}

TEST(TokenizerJson, AddedTokens) {
  const auto ids = [](const json& token, const std::string& text, bool special_in_text = true) {
    json entry = {{"id", 9},         {"content", "bb"}, {"single_word", false},
                  {"lstrip", false}, {"rstrip", false}, {"normalized", false},
                  {"special", false}};
    if (!token.is_null()) entry.merge_patch(token);
    return ids_of({{"added_tokens", {entry}}}, text, special_in_text);
  };
  EXPECT_EQ(ids({}, "abbc"), (Ids{1, 9, 3}));
  EXPECT_EQ(ids({}, "abbbc"), (Ids{1, 9, 2, 3}));
  EXPECT_EQ(ids({{"lstrip", true}}, "a  bb c"), (Ids{1, 9, 6, 3}));
  EXPECT_EQ(ids({{"rstrip", true}}, "a bb \u00A0c"), (Ids{1, 6, 9, 3}));
  EXPECT_EQ(ids({{"lstrip", true}, {"rstrip", true}}, "bb  bb"), (Ids{9, 9}));
  EXPECT_EQ(ids({{"special", true}}, "abbc", false), (Ids{4, 2, 3}));
  EXPECT_EQ(ids({{"special", false}}, "abbc", false), (Ids{1, 9, 3}));
  NEEDS(Pcre2);
  EXPECT_EQ(ids({{"single_word", true}}, "abb bb bbc\u00E9bb bb"),
            (Ids{4, 2, 6, 9, 6, 2, 2, 3, 0, 2, 2, 6, 9}));
}

TEST(TokenizerJson, TheLongestAddedTokenWins) {
  const json added = {{{"id", 9}, {"content", "<a"}},
                      {{"id", 10}, {"content", "<a><b>"}},
                      {{"id", 11}, {"content", "<a>"}}};
  EXPECT_EQ(ids_of({{"added_tokens", added}}, "<a><b><a><a"), (Ids{10, 11, 9}));
}

TEST(TokenizerJson, NormalizedAddedTokensAreFoundInNormalizedText) {
  const json changes = {
      {"normalizer", {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "_"}}},
      {"added_tokens",
       {{{"id", 9}, {"content", "c c"}, {"normalized", true}},
        {{"id", 10}, {"content", "a a"}, {"normalized", false}}}}};
  EXPECT_EQ(ids_of(changes, "c c"), (Ids{9}));
  EXPECT_EQ(ids_of(changes, "c_c"), (Ids{9}));
  EXPECT_EQ(ids_of(changes, "a a"), (Ids{10}));
  EXPECT_EQ(ids_of(changes, "a_a"), (Ids{1, 8}));
}

TEST(TokenizerJson, PostProcessors) {
  const auto around = [](const json& processor) {
    json document = small_json();
    document["post_processor"] = processor;
    document["added_tokens"] = {{{"id", 9}, {"content", "<s>"}, {"special", true}},
                                {{"id", 10}, {"content", "</s>"}, {"special", true}}};
    return from_json(document)->encode("a");
  };
  const json template_processing = json::parse(
      R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
          {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "both", "type_id": 0}}], "pair": [],
          "special_tokens": {"<s>": {"id": "<s>", "ids": [9], "tokens": ["<s>"]},
                             "both": {"id": "both", "ids": [10, 9], "tokens": ["</s>", "<s>"]}}})");
  EXPECT_EQ(around(template_processing), (Ids{9, 1, 10, 9}));
  EXPECT_EQ(around({{"type", "RobertaProcessing"}, {"sep", {"</s>", 10}}, {"cls", {"<s>", 9}}}),
            (Ids{9, 1, 10}));
  EXPECT_EQ(around({{"type", "Sequence"},
                    {"processors", {{{"type", "ByteLevel"}}, template_processing}}}),
            (Ids{9, 1, 10, 9}));
}

TEST(TokenizerJson, Decoders) {
  const auto text = [](const json& decoder, const std::vector<std::string>& pieces) {
    json document = small_json();
    document["decoder"] = decoder;
    document["model"]["vocab"] = {{"<unk>", 0}};
    document["model"]["merges"] = json::array();
    Ids ids;
    for (const std::string& piece : pieces) {
      const int id = static_cast<int>(document["model"]["vocab"].size());
      if (!document["model"]["vocab"].contains(piece)) document["model"]["vocab"][piece] = id;
      ids.push_back(document["model"]["vocab"][piece]);
    }
    const auto tokenizer = from_json(document);
    EXPECT_EQ(streamed(*tokenizer, ids, false), tokenizer->decode(ids));
    return tokenizer->decode(ids);
  };
  const json replace = {{"type", "Replace"}, {"pattern", {{"String", "_"}}}, {"content", " "}};
  const json llama2 = {{"type", "Sequence"},
                       {"decoders",
                        {replace,
                         {{"type", "ByteFallback"}},
                         {{"type", "Fuse"}},
                         {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
  EXPECT_EQ(text(nullptr, {"a", "b"}), "a b");
  EXPECT_EQ(text({{"type", "Fuse"}}, {"a", "b"}), "ab");
  EXPECT_EQ(text(llama2, {"_a", "_b"}), "a b");
  EXPECT_EQ(text(llama2, {"__", "_b"}), "  b");
  EXPECT_EQ(text(llama2, {"<0xC3>", "<0xA9>", "_b"}), "\u00E9 b");
  EXPECT_EQ(text(llama2, {"<0xC3>", "_b", "<0xa9>"}), "\uFFFD b\uFFFD");
  EXPECT_EQ(
      text({{"type", "Strip"}, {"content", "x"}, {"start", 1}, {"stop", 2}}, {"xxaxxx", "xb"}),
      "xaxb");
  const json fused_strip = {
      {"type", "Sequence"},
      {"decoders",
       {{{"type", "Fuse"}}, {{"type", "Strip"}, {"content", "x"}, {"start", 2}, {"stop", 2}}}}};
  EXPECT_EQ(text(fused_strip, {"x", "xx", "a", "x", "b", "x", "xx"}), "xaxbx");
  EXPECT_EQ(text({{"type", "Metaspace"},
                  {"replacement", "_"},
                  {"prepend_scheme", "always"},
                  {"split", true}},
                 {"_a", "_b"}),
            "a b");
  EXPECT_EQ(text({{"type", "Metaspace"},
                  {"replacement", "_"},
                  {"prepend_scheme", "never"},
                  {"split", true}},
                 {"_a", "_b"}),
            " a b");
  EXPECT_EQ(text({{"type", "BPEDecoder"}, {"suffix", "</w>"}}, {"a", "b</w>", "c</w>"}), "ab c");
  EXPECT_EQ(
      text({{"type", "ByteLevel"}}, {"\u00C3", "\u00A9", "\u0120a", "\u00F0\u0141", "b", "\u2581"}),
      "\u00E9 a\uFFFDb\u2581");
}

TEST(TokenizerJson, ByteLevelTakesAnyBytes) {
  json document = json::parse(read_text(kLlama + "/tokenizer.json"));
  document["pre_tokenizer"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", false}};
  const auto tokenizer = from_json(document);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("is it", Bos::off)), " is it");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(" is it", Bos::off)), " is it");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("\u00E9\U0001F600", Bos::off)),
            " \u00E9\U0001F600");
}

TEST(TokenizerJson, UnknownPartsAreNamed) {
  EXPECT_EQ(error_with({{"model", {{"type", "WordPiece"}}}}),
            "tokenizer.json: model.type: expected BPE, found \"WordPiece\"");
  EXPECT_EQ(error_with({{"normalizer", {{"type", "Nmt"}}}}),
            "tokenizer.json: normalizer.type: expected a normalizer of Sequence, Replace, Prepend, "
            "NFC, NFD, NFKC, "
            "NFKD, Lowercase, Strip, found \"Nmt\"");
  EXPECT_EQ(
      error_with({{"pre_tokenizer",
                   {{"type", "Sequence"}, {"pretokenizers", {{{"type", "UnicodeScripts"}}}}}}}),
      "tokenizer.json: pre_tokenizer.pretokenizers[0].type: expected a pre-tokenizer of Sequence, "
      "Split, "
      "Digits, ByteLevel, Metaspace, Whitespace, WhitespaceSplit, Punctuation, CharDelimiterSplit, "
      "found "
      "\"UnicodeScripts\"");
  EXPECT_EQ(error_with({{"decoder", {{"type", "CTC"}}}}),
            "tokenizer.json: decoder.type: expected a decoder of Sequence, ByteLevel, Replace, "
            "ByteFallback, Fuse, "
            "Strip, Metaspace, BPEDecoder, found \"CTC\"");
  EXPECT_EQ(error_with({{"post_processor", {{"type", "Other"}}}}),
            "tokenizer.json: post_processor.type: expected a post-processor of Sequence, "
            "TemplateProcessing, "
            "BertProcessing, RobertaProcessing, ByteLevel, found \"Other\"");
  EXPECT_EQ(error_with({{"model", {{"dropout", 0.1}}}}),
            "tokenizer.json: model.dropout: expected null: no dropout, found 0.1");
  EXPECT_EQ(error_with({{"pre_tokenizer", split("Sideways")}}),
            "tokenizer.json: pre_tokenizer.behavior: expected Removed, Isolated, "
            "MergedWithPrevious, MergedWithNext "
            "or Contiguous, found \"Sideways\"");
}

TEST(TokenizerJson, WithoutPcre2OtherPatternsAreRefused) {
  if (kHavePcre2) GTEST_SKIP() << "built with PCRE2";
  json document = json::parse(read_text(kLlama + "/tokenizer.json"));
  document["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "[a-z]+";
  EXPECT_EQ(message_of([&] { from_json(document); }),
            "tokenizer.json: pre_tokenizer.pretokenizers[0].pattern.Regex: only the patterns of "
            "GPT-2, Llama 3 and Qwen are known: this stet was built without PCRE2, which [a-z]+ "
            "needs");
  const std::string error = error_with({{"pre_tokenizer", {{"type", "Whitespace"}}}});
  EXPECT_TRUE(
      error.starts_with("tokenizer.json: pre_tokenizer.type: only the patterns of GPT-2, Llama 3 "
                        "and Qwen are known: this stet was built without PCRE2, which ["))
      << error;
}

TEST(TokenizerJson, WithoutUtf8procTextThatNfcMayChangeIsRefused) {
  if (kHaveUtf8proc) GTEST_SKIP() << "built with utf8proc";
  json document = small_json();
  document["normalizer"] = {{"type", "NFC"}};
  document["model"]["vocab"]["\u00E9"] = 9;
  document["model"]["vocab"]["\u4E2D"] = 10;
  const auto tokenizer = from_json(document);
  EXPECT_EQ(tokenizer->encode("a\u00E9\u4E2D", Bos::off), (Ids{1, 9, 10}));
  EXPECT_EQ(message_of([&] { tokenizer->encode("ae\u0301"); }),
            "tokenizer.json: normalizer.type: expected text that is in NFC for certain: this build "
            "has no utf8proc to bring it there, found U+0301");
  EXPECT_EQ(error_with({{"normalizer", {{"type", "NFKC"}}}}),
            "tokenizer.json: normalizer.type: expected no Unicode normalizer but NFC: this build "
            "has no utf8proc, found \"NFKC\"");
}

TEST(TokenizerJson, WrongTablesAreErrors) {
  EXPECT_EQ(error_with({{"model", {{"merges", {"a b", "a zz"}}}}}),
            "tokenizer.json: model.merges[1]: expected pieces of the vocabulary, found zz");
  EXPECT_EQ(error_with({{"model", {{"merges", {"b a"}}}}}),
            "tokenizer.json: model.merges[0]: expected pieces of the vocabulary, found ba");
  EXPECT_EQ(
      error_with({{"model", {{"merges", {"ab"}}}}}),
      "tokenizer.json: model.merges[0]: expected two pieces with one space between, found ab");
  EXPECT_EQ(error_with({{"model", {{"merges", {{"a", "b", "c"}}}}}}),
            "tokenizer.json: model.merges[0]: expected two strings, found more");
  EXPECT_EQ(
      error_with({{"model", {{"merges", {"a b", 5}}}}}),
      "tokenizer.json: model.merges[1]: expected strings or pairs of strings, found a number");
  EXPECT_EQ(error_with({{"model", {{"vocab", {{"d", 2}}}}}}),
            "tokenizer.json: model.vocab.d: expected an id of its own, found 2, that of b");
  EXPECT_EQ(error_with({{"model", {{"vocab", {{"d", -1}}}}}}),
            "tokenizer.json: model.vocab.d: expected an id in 0..4115, found -1");
  EXPECT_EQ(error_with({{"model", {{"vocab", {{"d", 4000000000}}}}}}),
            "tokenizer.json: model.vocab.d: expected an id in 0..4115, found 4000000000");
  EXPECT_EQ(error_with({{"model", {{"vocab", {{"d", "9"}}}}}}),
            "tokenizer.json: model.vocab.d: expected an id for each piece, found a string");
  EXPECT_EQ(error_with({{"model", {{"unk_token", "?"}}}}),
            "tokenizer.json: model.unk_token: expected a piece of the vocabulary, found \"?\"");
  EXPECT_EQ(error_with({{"model", {{"merges", nullptr}}}}),
            "tokenizer.json: model.merges: expected an array, found none");
  EXPECT_EQ(error_with({{"model", {{"fuse_unk", 1}}}}),
            "tokenizer.json: model.fuse_unk: expected true or false, found 1");
}

TEST(TokenizerJson, AddedTokensThatContradictAreErrors) {
  const auto error = [](const json& added) { return error_with({{"added_tokens", added}}); };
  EXPECT_EQ(error({{{"id", 1}, {"content", "b"}},
                   {{"id", 2}, {"content", "a"}}}),  // each claims the other's id
            "tokenizer.json: added_tokens[0]: expected id 2 of b as in the vocabulary, found 1");
  EXPECT_EQ(error({{{"id", 9}, {"content", "x"}}, {{"id", 9}, {"content", "y"}}}),
            "tokenizer.json: added_tokens[1]: expected an id of its own, found 9, that of x");
  EXPECT_EQ(error({{{"id", 9}, {"content", "x"}}, {{"id", 9}, {"content", "x"}}}),
            "tokenizer.json: added_tokens[1]: expected each added token once, found x twice");
  EXPECT_EQ(error({{{"id", 100000}, {"content", "x"}}}),
            "tokenizer.json: added_tokens[0]: expected an id in 0..4113, found 100000");
  EXPECT_EQ(error({{{"id", 9}, {"content", ""}}}),
            "tokenizer.json: added_tokens[0]: expected a token of 1..4096 bytes, found 0");
  EXPECT_EQ(error({{{"id", -9}, {"content", "x"}}}),
            "tokenizer.json: added_tokens[0].id: expected an integer in 0..2147483646, found -9");
}

TEST(TokenizerJson, InvalidJsonIsAnError) {
  const auto error = [](const std::string& bytes) {
    return message_of([&] { Tokenizer::load_from_files({{"tokenizer.json", bytes}}); });
  };
  EXPECT_EQ(error("[]"), "tokenizer.json: expected a JSON object, found array");
  EXPECT_EQ(error("{}"), "tokenizer.json: model: expected a value, found none");
  EXPECT_EQ(error(R"({"a": 1, "a": 2})"),
            "tokenizer.json: a: expected each key once, found a twice");
  EXPECT_EQ(error(R"({"model": {"vocab": {"x": 0, "x": 1}, "merges": []}})"),
            "tokenizer.json: model.vocab.x: expected each piece once, found it twice");
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += R"({"a":[)";
  std::string field = "a";
  for (int i = 1; i < 32; ++i) field += "[0].a";
  EXPECT_EQ(error(deep),
            "tokenizer.json: " + field + ": expected nesting of at most 64, found more");
  EXPECT_EQ(error("{"),
            "tokenizer.json: line 1, column 2: expected valid JSON, found the end of the text");
  EXPECT_EQ(
      error("{\n \"a\": ]}"),
      "tokenizer.json: line 2, column 7: expected valid JSON, found '\"a\": ]': unexpected ']'; "
      "expected '[', '{', or a literal");
  EXPECT_EQ(error(""),
            "tokenizer.json: line 1, column 1: expected valid JSON, found the end of the text");
}

TEST(TokenizerJson, PatternsThatTwoLibrariesReadDifferentlyAreRefused) {
  NEEDS(Pcre2);
  const auto error = [](const std::string& regex) {
    return error_with(
        {{"pre_tokenizer",
          {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}}}});
  };
  const std::string where = "tokenizer.json: pre_tokenizer.pattern.Regex: expected ";
  EXPECT_EQ(error("[a-z&&[^x]]"),
            where + "a pattern that Oniguruma and PCRE2 read alike, found && in a class");
  EXPECT_EQ(error("\\h+"), where + "a pattern that Oniguruma and PCRE2 read alike, found \\h");
  EXPECT_EQ(error("(?m:a.b)"), where + "a pattern that Oniguruma and PCRE2 read alike, found (?m");
  EXPECT_EQ(error("(a"),
            where + "a regular expression, found missing closing parenthesis at byte 2 of (a");
  EXPECT_EQ(error("(?i:'s|'t)|[^\\s\\p{L}]+"), "no error");
}

TEST(TokenizerJson, APatternThatBacktracksWithoutEndIsAnError) {
  NEEDS(Pcre2);
  json document = small_json();
  document["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "(a+)+$"}}}, {"behavior", "Isolated"}};
  const auto tokenizer = from_json(document);
  EXPECT_EQ(message_of([&] { tokenizer->encode(std::string(100, 'a') + "b"); }),
            "tokenizer.json: pre_tokenizer.pattern.Regex: expected a match within PCRE2's limits, "
            "found match limit exceeded");
  EXPECT_EQ(tokenizer->encode("ab", Bos::off), (Ids{4}));
}

// A megabyte of one word, of spaces, of everything that a careless algorithm would scan repeatedly.
// Each takes well under a second; quadratic time would be hours.
TEST(TokenizerJson, AMegabyteTakesLinearTime) {
  std::mt19937 random(5);
  std::string letters, marks = "e";
  for (int i = 0; i < 1'000'000; ++i) letters.push_back(static_cast<char>('a' + random() % 26));
  for (int i = 0; i < 250'000; ++i) marks += i % 2 ? "\u0301" : "\u0316";
  const std::vector<std::string> texts = {letters,
                                          std::string(1'000'000, 'a'),
                                          std::string(1'000'000, ' ') + "x",
                                          std::string(1'000'000, '<'),
                                          std::string(1'000'000, '\n'),
                                          marks};
  json normalized = json::parse(read_text(kLlama + "/tokenizer.json"));
  const auto llama = from_json(normalized);
  normalized["normalizer"] = {{"type", "NFC"}};
  const auto nfc = from_json(normalized);
  for (const std::string& text : texts) {
    const Ids ids = llama->encode(text, Bos::off);
    EXPECT_EQ(llama->decode(ids), text);
    if (text == marks && !kHaveUtf8proc) continue;
    EXPECT_FALSE(nfc->encode(text, Bos::off).empty());
  }
  if (!kHaveSentencepiece) return;
  const auto gemma = Tokenizer::load(kGemma);
  for (const std::string& text : texts)
    EXPECT_EQ(gemma->decode(gemma->encode(text, Bos::off)), text);
}

}  // namespace stet::test::tokenizer_json_tests
