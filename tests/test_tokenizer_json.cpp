#include "tokenizer_testing.hpp"

using namespace stet_test;

namespace {

class Golden : public testing::TestWithParam<const char*> {};

}  // namespace

TEST_P(Golden, EveryTextEncodesAndDecodesAsTransformersDoes) {
  const std::string directory = fixtures() + "/tokenizers/" + GetParam();
  if (!std::filesystem::exists(directory)) GTEST_SKIP() << "no " << directory;
  const auto tokenizer = Tokenizer::load(directory);
  const auto golden = nlohmann::json::parse(read_bytes(directory + "/golden.json"));
  ASSERT_EQ(golden["encode"].size(), 255u);
  for (const auto& entry : golden["encode"]) {
    const std::string text = entry["text"];
    const Ids ids = entry["ids"], with_special = entry["with_special"];
    EXPECT_EQ(tokenizer->encode(text, Bos::off), ids) << text;
    EXPECT_EQ(tokenizer->encode(text, Bos::automatic), with_special) << text;
    EXPECT_EQ(tokenizer->decode(with_special, false).size() >= tokenizer->decode(ids, false).size(), true);
    EXPECT_EQ(tokenizer->decode(ids, false), std::string(entry["decoded"])) << text;
    EXPECT_EQ(tokenizer->decode(with_special, true), std::string(entry["decoded_skip_special"])) << text;
    EXPECT_EQ(streamed(*tokenizer, ids, false), std::string(entry["decoded"])) << text;
  }
  for (const auto& entry : golden["chat"]) {
    if (!entry.contains("text")) continue;
    EXPECT_EQ(tokenizer->encode(std::string(entry["text"]), Bos::off), Ids(entry["ids"]));
  }
}

INSTANTIATE_TEST_SUITE_P(Real, Golden, testing::Values("gpt2", "llama3_1", "gemma3"));
