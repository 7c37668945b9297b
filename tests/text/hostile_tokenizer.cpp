// Malicious tokenizers: their demands are refused, or met within the time and the memory of
// limits.hpp.
#include <gtest/gtest.h>

#include <random>

#include "src/text/added_tokens.hpp"
#include "src/text/known_patterns.hpp"
#include "stet/base/limits.hpp"
#include "tests/support/process_cost.hpp"
#include "tests/text/tokenizer_testing.hpp"

namespace stet::test::hostile_tokenizer_tests {
namespace {

using Json = nlohmann::json;

// Returns the files of a tokenizer of single letters after a change.
template <class Change>
Tokenizer::Files files_with(const Change& change) {
  Json j = {
      {"model",
       {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}, {"c", 2}}}, {"merges", Json::array()}}},
      {"added_tokens", Json::array()}};
  change(j);
  return {{"tokenizer.json", j.dump()}};
}

// Returns the error of reading the files or encoding a text, and checks the promised memory and
// time.
std::string said_within_limits(const Tokenizer::Files& files, const std::string& text) {
  size_t bytes = text.size();
  for (const auto& file : files) bytes += file.second.size();
  const auto work = [&] {
    return message_of([&] { Tokenizer::load_from_files(files)->encode(text); });
  };
  const ProcessCost spent = cost_of(work);
  EXPECT_EQ(spent.status, 0);
#ifndef STET_SANITIZED
  EXPECT_LE(spent.memory, (size_t{64} << 20) + 4 * bytes);
  EXPECT_LE(spent.seconds, 10);
#endif
  return work();
}

Json multiply(const std::string& type, int times) {
  Json parts = Json::array();
  for (int i = 0; i < times; ++i)
    parts.push_back(
        {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaaaaaaaa"}});
  return {{"type", "Sequence"}, {type, parts}};
}

const std::string kReplace =
    R"({"content":"aaaaaaaaaa","pattern":{"String":"a"},"type":"Replace"})";

TEST(HostileTokenizer, NormalizersThatMultiply) {
  const auto files = files_with([](Json& j) { j["normalizer"] = multiply("normalizers", 11); });
  EXPECT_EQ(said_within_limits(files, "a"),
            "text: normalizers would make it longer than 16777224 bytes");
  EXPECT_EQ(said_within_limits(
                files_with([](Json& j) { j["normalizer"] = multiply("normalizers", 3); }), "aaa"),
            kNoError);
  EXPECT_EQ(message_of([&] {
              Tokenizer::load_from_files(
                  files_with([](Json& j) { j["normalizer"] = multiply("normalizers", 65); }));
            }),
            "tokenizer.json: normalizer.normalizers[64]: expected at most 64 normalizers, found " +
                kReplace);
}

TEST(HostileTokenizer, DecodersThatMultiply) {
  const auto load = [](int times) {
    return message_of([&] {
      Tokenizer::load_from_files(
          files_with([&](Json& j) { j["decoder"] = multiply("decoders", times); }));
    });
  };
  EXPECT_EQ(load(1), kNoError);
  EXPECT_EQ(load(2),
            "tokenizer.json: decoder.decoders[1]: expected decoders that make a text at most 64 "
            "times as long, found " +
                kReplace);
}

TEST(HostileTokenizer, PreTokenizersThatMultiply) {
  Json parts = Json::array();
  for (int i = 0; i < 60; ++i) {
    parts.push_back({{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Isolated"}});
    parts.push_back({{"type", "Metaspace"},
                     {"replacement", i % 2 == 0 ? "x" : "y"},
                     {"prepend_scheme", "always"},
                     {"split", false}});
  }
  const auto with = [&](size_t count) {
    return files_with([&](Json& j) {
      j["pre_tokenizer"] = {
          {"type", "Sequence"},
          {"pretokenizers",
           Json(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(count))}};
    });
  };
  EXPECT_EQ(message_of([&] { Tokenizer::load_from_files(with(120)); }),
            "tokenizer.json: pre_tokenizer.pretokenizers[64]: expected at most 64 pre-tokenizers, "
            "found {\"behavior\":\"Isolated\",\"pattern\":{\"String\":\"a\"},\"type\":\"Split\"}");
  EXPECT_EQ(said_within_limits(with(64), std::string(1 << 17, 'a')),
            "text: pre-tokenizers would make too many words of it");
}

// Patterns that scan the whole text from each position, or move back and forth in it.
TEST(HostileTokenizer, OneBudgetForAllMatchesOfAText) {
  NEEDS(Pcre2);
  for (const char* pattern : {"a++b", "(a|aa)+c", "(?=(a+))a*b:\\1", "(?<=b)a*+c|a(?=.*c)"}) {
    const auto files = files_with([&](Json& j) {
      j["pre_tokenizer"] = {{"type", "Split"},
                            {"pattern", {{"Regex", pattern}}},
                            {"behavior", "Isolated"},
                            {"invert", false}};
    });
    const std::string said = said_within_limits(files, std::string(105'000, 'a'));
    EXPECT_TRUE(said == kNoError ||
                said.find("matching the pattern takes too long") != std::string::npos ||
                said.find("a match within PCRE2's limits") != std::string::npos)
        << pattern << ": " << said;
  }
}

// Runs that these patterns look ahead over, and runs at whose end they would backtrack.
TEST(HostileTokenizer, KnownPatternsTakeLinearTime) {
  for (
      const char* pattern :
      {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
       R"(\p{N})"}) {
    ASSERT_TRUE(stet::KnownPattern::of(pattern)) << pattern;
    const auto files = files_with([&](Json& j) {
      j["pre_tokenizer"] = {{"type", "Split"},
                            {"pattern", {{"Regex", pattern}}},
                            {"behavior", "Removed"},
                            {"invert", false}};
    });
    for (const std::string part : {"a", " ", "\n", "\n ", "  a", "'", "'l", "1", " 1", "!", "!\r",
                                   "\r !", "\u3000", "\u00A0\n", "\u0301"}) {
      std::string text;
      while (text.size() < (size_t{1} << 18)) text += part;
      EXPECT_EQ(said_within_limits(files, text + "x"), kNoError) << pattern << part;
    }
  }
}

// Searching a text in windows changes nothing: matches far behind their beginnings, at edges,
// inside of characters.
TEST(HostileTokenizer, MatchesAreFoundWhereverTheyBegin) {
  NEEDS(Pcre2);
  const auto files = files_with([](Json& j) {
    j["pre_tokenizer"] = {{"type", "Split"},
                          {"pattern", {{"Regex", "b|(?<=c)a"}}},
                          {"behavior", "Removed"},
                          {"invert", true}};
    j["model"]["unk_token"] = nullptr;
  });
  const auto tokenizer = Tokenizer::load_from_files(files);
  for (const size_t far : {0, 1, 63, 64, 65, 4094, 4095, 4096, 4097, 70'000, 5'000'000}) {
    for (const std::string fill : {"a", "\u2581"}) {
      std::string text;
      while (text.size() < far) text += fill;
      EXPECT_EQ(tokenizer->encode(text + "b"), Ids({1})) << far;
      EXPECT_EQ(tokenizer->encode(text + "cab"), Ids({0, 1})) << far;
    }
  }
}

TEST(HostileTokenizer, AddedTokensAreLookedForInLinearTime) {
  const auto files = files_with([](Json& j) {
    for (int i = 0; i < 100; ++i) {
      j["added_tokens"].push_back(
          {{"id", 3 + i},
           {"content", std::string(4000 - static_cast<size_t>(i), 'a') + "b"},
           {"special", false},
           {"normalized", false}});
      if (i < 30)
        j["added_tokens"].push_back(
            {{"id", 200 + i},
             {"content", "b" + std::string(4000 - static_cast<size_t>(i), 'a')},
             {"special", false},
             {"normalized", true}});
    }
  });
  EXPECT_EQ(said_within_limits(files, std::string(1 << 20, 'a')), kNoError);
  const auto many = files_with([](Json& j) {
    for (int i = 0; i < 200; ++i)
      j["added_tokens"].push_back(
          {{"id", 3 + i}, {"content", std::string(4000, 'a') + std::to_string(i)}});
  });
  EXPECT_EQ(
      said_within_limits(many, "a").substr(0, 85),
      "tokenizer.json: added_tokens[131]: expected at most 16384 added tokens of 524288 byte");
}

// Compares with the definition: the longest of the tokens that begin leftmost.
TEST(HostileTokenizer, AddedTokensAreThoseOfTheDefinition) {
  std::mt19937 random(5);
  const auto letters = [&](size_t count) {
    std::string text;
    while (text.size() < count) text += "ab"[random() % 2];
    return text;
  };
  for (int round = 0; round < 2000; ++round) {
    stet::AddedTokenFinder finder;
    std::vector<std::string> tokens;
    for (size_t i = 0; i < 1 + random() % 6; ++i) {
      tokens.push_back(letters(1 + random() % 5));
      stet::AddedToken token;
      token.id = static_cast<int32_t>(i);
      token.text = tokens.back();
      finder.add(token, token.text, "FILE");
    }
    finder.build();
    const std::string text = letters(random() % 40);
    std::vector<stet::Segment> found;
    finder.split({text, -1, true, false}, {}, found);
    std::vector<std::pair<std::string, bool>> expected;
    std::string between;
    const auto flush = [&] {
      if (!between.empty()) expected.emplace_back(std::exchange(between, ""), false);
    };
    for (size_t at = 0; at < text.size();) {
      std::string longest;
      for (const std::string& token : tokens) {
        if (token.size() > longest.size() && text.compare(at, token.size(), token) == 0)
          longest = token;
      }
      if (longest.empty()) {
        between += text[at++];
        continue;
      }
      flush();
      expected.emplace_back(longest, true);
      at += longest.size();
    }
    flush();
    ASSERT_EQ(found.size(), expected.size()) << text;
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].text, expected[i].first) << text;
      EXPECT_EQ(found[i].id >= 0, expected[i].second) << text;
      if (found[i].id < 0) continue;
      EXPECT_EQ(tokens[static_cast<size_t>(found[i].id)], expected[i].first);
    }
  }
}

TEST(HostileTokenizer, FilesAndTablesHaveLimits) {
  const auto load = [](const Tokenizer::Files& files) {
    return message_of([&] { Tokenizer::load_from_files(files); });
  };
  const auto with_config = [](const Json& config) {
    auto files = files_with([](Json&) {});
    files.emplace_back("tokenizer_config.json", config.dump());
    return files;
  };
  EXPECT_EQ(load(with_config({{"chat_template", std::string(stet::kMaxTemplates + 1, 'x')}})),
            "tokenizer_config.json: chat_template: expected at most 1048576 bytes, found 1048577");
  std::string lists = R"({"x":[[])";
  while (lists.size() < 6'000'000) lists += ",[],[],[],[],[],[],[],[],[],[],[],[],[],[],[],[]";
  lists += "]}";
  auto files = files_with([](Json&) {});
  files.emplace_back("tokenizer_config.json", lists);
  EXPECT_EQ(said_within_limits(files, ""),
            "tokenizer_config.json: expected JSON whose values take at most " +
                std::to_string(stet::kJsonBytes + stet::kJsonRatio * lists.size()) +
                " bytes, found more");
  std::string vocab = R"({"model":{"type":"BPE","vocab":{"a":0)";
  for (size_t i = 1; i <= stet::kMaxPieces; ++i)
    vocab += ",\"" + std::to_string(i) + "\":" + std::to_string(i);
  EXPECT_EQ(
      said_within_limits({{"tokenizer.json", vocab + R"(},"merges":[]}})"}}, "").substr(0, 40),
      "tokenizer.json: model.vocab.524288: expe");
}

}  // namespace
}  // namespace stet::test::hostile_tokenizer_tests
