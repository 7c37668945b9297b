// The splitter for known patterns and its tables, compared with PCRE2 and utf8proc.
#include "src/text/known_patterns.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "src/text/pattern.hpp"
#include "src/text/text_budget.hpp"
#include "tests/support/files.hpp"
#include "tests/text/tokenizer_testing.hpp"

#ifdef STET_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif
#ifdef STET_HAVE_UTF8PROC
#include <utf8proc.h>
#endif

namespace stet::test::known_patterns_tests {
namespace {

using nlohmann::json;
using stet::CharClass;
using stet::KnownPattern;

const std::string kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::string kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kQwen =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Returns every contraction with all possible continuations, and single characters.
std::vector<std::string> known_spellings() {
  const std::vector<std::string> contractions = {
      "'s|'t|'re|'ve|'m|'ll|'d", "'(?:[sdmt]|ll|ve|re)",
      "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])", "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
      "'(?i:[sdmt]|ll|ve|re)"};
  const std::vector<std::string> rests = {
      kGpt2.substr(kGpt2.find("| ")), kLlama3.substr(kLlama3.find("|[^")),
      kQwen.substr(kQwen.find("|[^")),
      R"(|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)"};
  std::vector<std::string> all{R"(\p{N})", R"(\s)"};
  for (const std::string& begin : contractions) {
    for (const std::string& rest : rests) all.push_back(begin + rest);
  }
  return all;
}

// Returns an equivalent pattern in an unknown spelling, so that PCRE2 matches it.
std::string respelled(const std::string& source) { return "(?:" + source + ")"; }

// Returns the end of each match, and its beginning unless it starts where the previous one ended.
std::vector<size_t> matches(const stet::Pattern& pattern, const std::string& text) {
  stet::TextBudget budget(text.size());
  stet::Pattern::Finder finder(pattern, text, budget);
  std::vector<size_t> places;
  size_t done = 0;
  for (stet::Match m; finder.next(m); done = m.end) {
    if (m.begin != done) places.push_back(m.begin);
    places.push_back(m.end);
  }
  return places;
}

struct BothWays {
  explicit BothWays(const std::string& source)
      : known(stet::Pattern::regex(source, "FILE", "known")),
        pcre2(stet::Pattern::regex(respelled(source), "FILE", "PCRE2")) {}
  stet::Pattern known, pcre2;
};

bool is_scalar(uint32_t code) { return code < 0xD800 || code >= 0xE000; }

std::string utf8(uint32_t code) {
  std::string text;
  stet::utf8_append(text, code);
  return text;
}

// Runs of characters that matter to the patterns, among arbitrary ones.
class Texts {
 public:
  std::string next() {
    std::string text;
    const size_t parts = 1 + random_() % 14;
    for (size_t i = 0; i < parts; ++i) {
      const std::string part = one();
      for (size_t times = random_() % 3 ? 1 : 1 + random_() % 5; times > 0; --times) text += part;
    }
    return random_() % 16 ? text : stet::utf8_lossy(text + random_bytes(random_, 3) + text);
  }

 private:
  template <class Values>
  auto pick(const Values& values) {
    return *(std::begin(values) + static_cast<std::ptrdiff_t>(random_() % std::size(values)));
  }

  std::string one() {
    static const uint32_t letters[] = {'a',    'Z',    0xE9,   0x130,  0x17F,   0x1C5,   0x2B0,
                                       0x3B1,  0x430,  0x5D0,  0x627,  0x905,   0xE01,   0x1100,
                                       0x212A, 0x3042, 0x4E2D, 0xAC00, 0x10400, 0x1D400, 0x20000};
    static const uint32_t numbers[] = {'0',    '5',    '9',    0xB2,   0xBD,   0x663,
                                       0x2167, 0x2460, 0x3007, 0xFF11, 0x1D7CE};
    static const uint32_t spaces[] = {' ',    ' ',    ' ',    '\t',   '\v',   '\f',   0x85,
                                      0xA0,   0x1680, 0x2000, 0x2003, 0x200A, 0x2028, 0x2029,
                                      0x202F, 0x205F, 0x3000, 0x1C,   0x180E, 0x200B, 0xFEFF};
    static const uint32_t others[] = {'!',     '-',     '<',     '_',     0,       0x7F,
                                      0x2019,  0x301,   0x316,   0x93F,   0x200D,  0x2581,
                                      0x20AC,  0x378,   0xE000,  0xFFFD,  0xFFFF,  0x1F600,
                                      0x1F1E9, 0x1F3FD, 0xE0100, 0xF0000, 0x10FFFF};
    static const char* const contractions[] = {
        "'",   "'s", "'S", "'t",      "'T",  "'re", "'rE", "'RE",     "'Ve",
        "'ve", "'m", "'M", "'ll",     "'Ll", "'lL", "'LL", "'d",      "'D",
        "'r",  "'l", "'v", "'\u017F", "''",  " '",  "l'",  "'\u212A", "'l\u017F"};
    static const char* const line_ends[] = {"\r", "\n", "\r\n", " \n", "\n "};
    switch (random_() % 9) {
      case 0:
        return pick(contractions);
      case 1:
      case 2:
        return utf8(pick(letters));
      case 3:
        return utf8(pick(numbers));
      case 4:
        return utf8(pick(spaces));
      case 5:
        return pick(line_ends);
      case 6:
        return utf8(pick(others));
      case 7:
        return utf8('a' + static_cast<uint32_t>(random_() % 26));
      default:
        for (uint32_t code; true;) {
          code = static_cast<uint32_t>(random_() % (random_() % 2 ? 0x3000 : 0x110000));
          if (is_scalar(code)) return utf8(code);
        }
    }
  }

  std::mt19937 random_{7};
};

TEST(KnownPatterns, AreKnownByTheirSpelling) {
  for (const std::string& source : known_spellings()) {
    EXPECT_TRUE(KnownPattern::of(source)) << source;
    EXPECT_FALSE(KnownPattern::of(respelled(source))) << source;
    EXPECT_FALSE(KnownPattern::of(source + "|x")) << source;
    EXPECT_FALSE(KnownPattern::of(source.substr(1))) << source;
  }
  EXPECT_FALSE(KnownPattern::of(""));
  EXPECT_FALSE(KnownPattern::of("'s|'t|'re|'ve|'m|'ll|'d"));
}

TEST(KnownPatterns, WordsOfEach) {
  using Words = std::vector<std::string>;
  const auto words = [](const std::string& source, const std::string& text) {
    Words found;
    size_t done = 0;
    for (const size_t end : matches(stet::Pattern::regex(source, "FILE", "field"), text)) {
      found.push_back(text.substr(done, end - done));
      done = end;
    }
    return found;
  };
  const std::string text = "I'll DON'T  1234\t(x) \n\n  y 5 ";
  EXPECT_EQ(words(kGpt2, text), (Words{"I", "'ll", " DON", "'", "T", " ", " 1234", "\t", "(", "x",
                                       ")", " \n\n ", " y", " 5", " "}));
  EXPECT_EQ(words(kLlama3, text), (Words{"I", "'ll", " DON", "'T", " ", " ", "123", "4", "\t", "(x",
                                         ")", " \n\n", " ", " y", " ", "5", " "}));
  EXPECT_EQ(words(kQwen, "a 12!\r\n\n b"), (Words{"a", " ", "1", "2", "!\r\n\n", " b"}));
  EXPECT_EQ(words(kLlama3, "'\u017F'\u212A"), (Words{"'\u017F", "'\u212A"}));
}

#ifdef STET_HAVE_PCRE2

TEST(KnownPatterns, CharacterClassesEqualPcre2s) {
  char version[64] = {};
  pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
  if (std::string(stet::kUnicodeVersion) != version) {
    GTEST_SKIP() << "PCRE2 has Unicode " << version << ", the tables " << stet::kUnicodeVersion;
  }
  std::string text;
  std::vector<uint32_t> codes;
  std::vector<size_t> places;
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (!is_scalar(code)) continue;
    codes.push_back(code);
    places.push_back(text.size());
    stet::utf8_append(text, code);
  }
  ASSERT_EQ(codes.size(), 0x110000u - 0x800u);
  std::vector<CharClass> found(text.size(), CharClass::other);
  size_t counts[4] = {};
  for (const auto& [source, members] :
       {std::pair(R"((?:\p{L}))", CharClass::letter), std::pair(R"((?:\p{N}))", CharClass::number),
        std::pair(R"((?:\s))", CharClass::space)}) {
    const stet::Pattern pattern = stet::Pattern::regex(source, "FILE", "field");
    stet::TextBudget budget(text.size());
    stet::Pattern::Finder finder(pattern, text, budget);
    for (stet::Match m; finder.next(m);) {
      found[m.begin] = members;
      ++counts[static_cast<int>(members)];
    }
  }
  EXPECT_GT(counts[1], 100'000u);
  EXPECT_GT(counts[2], 1'000u);
  EXPECT_EQ(counts[3], 25u);
  size_t different = 0;
  for (size_t i = 0; i < codes.size() && different < 10; ++i) {
    if (stet::char_class(codes[i]) == found[places[i]]) continue;
    ++different;
    ADD_FAILURE() << std::hex << codes[i];
  }
  for (uint32_t code = 0; code < 0x110000; ++code) {
    const bool space = stet::char_class(code) == CharClass::space;
    EXPECT_EQ(space, stet::is_white_space(code)) << code;
  }
}

TEST(KnownPatterns, EveryCharacterIsFoldedInContractionsAsPcre2Does) {
  for (const std::string& source : known_spellings()) {
    const BothWays both(source);
    std::string text;
    const auto compare = [&] {
      EXPECT_EQ(matches(both.known, text), matches(both.pcre2, text)) << source;
      text.clear();
    };
    for (uint32_t code = 1; code < 0x110000; ++code) {
      // Other spellings are tested with a sample of the code points above the Basic Multilingual
      // Plane.
      if (!is_scalar(code) || (code > 0xFFFF && code % 97 != 0 && source != kLlama3)) continue;
      const std::string c = utf8(code);
      text += "'" + c + "'r" + c + "'" + c + "l'" + c + c + "\n";
      if (text.size() > 1'000'000) compare();
    }
    compare();
  }
}

TEST(KnownPatterns, TextsAreSplitAsPcre2Does) {
  std::vector<BothWays> all;
  for (const std::string& source : {kGpt2, kLlama3, kQwen}) all.emplace_back(source);
  for (const std::string& source : known_spellings()) all.emplace_back(source);
  Texts texts;
  for (int i = 0; i < 120'000; ++i) {
    const std::string text = texts.next();
    ASSERT_TRUE(stet::utf8_valid(text));
    for (size_t k = 0; k < all.size(); ++k) {
      if (k >= 3 && i % 20 != 0) break;  // other spellings less often
      ASSERT_EQ(matches(all[k].known, text), matches(all[k].pcre2, text)) << k << ": " << text;
    }
  }
}

// Compares the ids of whole tokenizers, with their pattern unchanged and respelled.
size_t expect_same_ids(const std::string& directory) {
  json document = json::parse(read_text(directory + "/tokenizer.json"));
  const auto known = from_json(document);
  json& pre = document["pre_tokenizer"];
  if (pre["type"] == "ByteLevel") {
    json split = {{"type", "Split"}, {"pattern", {{"Regex", kGpt2}}}, {"behavior", "Isolated"}};
    pre["use_regex"] = false;
    pre = {{"type", "Sequence"}, {"pretokenizers", {split, pre}}};
  }
  json& source = pre["pretokenizers"][0]["pattern"]["Regex"];
  EXPECT_TRUE(KnownPattern::of(std::string(source))) << source;
  source = respelled(source);
  const auto pcre2 = from_json(document);
  EXPECT_NE(known->fingerprint(), pcre2->fingerprint());
  size_t count = 0;
  const auto expect_same = [&](const std::string& text) {
    EXPECT_EQ(known->encode(text), pcre2->encode(text)) << text;
    ++count;
  };
  if (std::filesystem::exists(directory + "/golden.json")) {
    const json golden = json::parse(read_text(directory + "/golden.json"));
    for (const json& entry : golden["encode"]) expect_same(entry["text"]);
    for (const json& entry : golden.value("chat", json::array())) {
      if (entry.contains("text")) expect_same(entry["text"]);
    }
  }
  const json conversations = json::parse(read_text(kGoldens + "llama3/conversations.json"));
  const auto pocket = Tokenizer::load(kLlama);
  for (const json& c : conversations) expect_same(pocket->decode(Ids(c["ids"])));
  std::mt19937 random(11);
  for (int i = 0; i < 500; ++i) expect_same(random_text(random, random() % 80));
  Texts texts;
  for (int i = 0; i < 2000; ++i) expect_same(texts.next());
  return count;
}

TEST(KnownPatterns, TokenizersGiveTheIdsOfPcre2) {
  EXPECT_GT(expect_same_ids(kLlama), 2500u);
  EXPECT_GT(expect_same_ids(STET_ROOT "/tests/data/tokenizer/gpt2"), 2650u);
  EXPECT_GT(expect_same_ids(STET_ROOT "/tests/data/tokenizer/llama3_1"), 2650u);
}

TEST(KnownPatterns, RealTokenizersGiveTheIdsThatTheyGiveWithPcre2) {
  for (const char* name : {"gpt2", "llama3_1"}) {
    const std::string directory = fixtures() + "/tokenizers/" + name;
    NEEDS_FIXTURE(directory);
    EXPECT_GT(expect_same_ids(directory), 2750u);
  }
}

#endif

TEST(KnownPatterns, NfcKeepsTextThatTheTableMarksStable) {
  std::string all;
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (is_scalar(code) && stet::nfc_prefix(utf8(code)) > 0) all += utf8(code);
  }
  EXPECT_GT(all.size(), 300'000u);
  EXPECT_EQ(stet::nfc_prefix(all), all.size());
  for (uint32_t code = 0; code < 0x300; ++code)
    EXPECT_EQ(stet::nfc_prefix(utf8(code)), utf8(code).size());
  for (const uint32_t code : {0x41Fu, 0x4E2Du, 0x3042u, 0xAC00u, 0x20ACu, 0x1F600u, 0x20000u})
    EXPECT_EQ(stet::nfc_prefix(utf8(code)), utf8(code).size()) << code;
  // A combining mark, one with a decomposition, one that ends a composition, a Hangul vowel and
  // final. Then others with a decomposition, and an unassigned code point.
  for (const uint32_t code :
       {0x301u, 0x344u, 0x9BEu, 0x1161u, 0x11A8u, 0x212Bu, 0xF900u, 0x2F800u, 0x378u})
    EXPECT_EQ(stet::nfc_prefix("ab" + utf8(code)), 2u) << code;
#ifdef STET_HAVE_UTF8PROC
  const auto nfc = [](const std::string& text) {
    utf8proc_uint8_t* out = nullptr;
    const utf8proc_ssize_t size =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                     static_cast<utf8proc_ssize_t>(text.size()), &out,
                     static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    std::string form(reinterpret_cast<const char*>(out), static_cast<size_t>(size));
    std::free(out);
    return form;
  };
  std::vector<std::string> characters;
  for (size_t at = 0; at < all.size(); at += characters.back().size())
    characters.push_back(all.substr(at, stet::utf8_at(all, at).length));
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    EXPECT_TRUE(nfc(all) == all);
    std::shuffle(characters.begin(), characters.end(), random);
    all.clear();
    for (const std::string& c : characters) all += c;
  }
  // The table covers some of the texts of all characters, but not all.
  Texts texts;
  size_t sure = 0, others = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::string text = texts.next();
    if (stet::nfc_prefix(text) < text.size()) {
      ++others;
      continue;
    }
    ++sure;
    ASSERT_EQ(nfc(text), text);
  }
  EXPECT_GT(sure, 5'000u);
  EXPECT_GT(others, 5'000u);
#endif
}

}  // namespace
}  // namespace stet::test::known_patterns_tests
