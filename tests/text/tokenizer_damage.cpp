// Damaged files give an Error or a working tokenizer, never a crash, a hang or a huge allocation.
#include <random>

#include "tests/support/files.hpp"
#include "tests/text/tokenizer_testing.hpp"

namespace stet::test::tokenizer_damage_tests {
namespace {

// Loads the files and uses the tokenizer if that works. Its output must only be well-formed.
void use(const Tokenizer::Files& files, std::mt19937& random, size_t& loaded) {
  try {
    const auto tokenizer = Tokenizer::load_from_files(files);
    ++loaded;
    for (const bool special : {true, false}) {
      const Ids ids =
          tokenizer->encode("Tell me a.<start_of_turn> <|eot_id|>\n  \u00E9\U0001F600 Now abc 12",
                            Bos::automatic, special);
      EXPECT_TRUE(stet::utf8_valid(tokenizer->decode(ids)));
    }
    Ids ids;
    for (int i = 0; i < 20; ++i)
      ids.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(tokenizer->size())));
    EXPECT_TRUE(stet::utf8_valid(tokenizer->decode(ids, true)));
  } catch (const stet::Error& e) {
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
  }
}

void damage(const std::string& name, const std::string& bytes, const Tokenizer::Files& others,
            int rounds) {
  std::mt19937 random(6);
  size_t loaded = 0;
  for (int i = 0; i < rounds; ++i) {
    Tokenizer::Files files = others;
    files.emplace_back(name, damaged(bytes, random));
    use(files, random, loaded);
  }
  EXPECT_GT(loaded,
            0u);  // some damage is harmless; if nothing loaded, this would test nothing
  for (size_t size = 0; size < bytes.size(); size += 1 + bytes.size() / 300) {
    Tokenizer::Files files = others;
    files.emplace_back(name, bytes.substr(0, size));
    use(files, random, loaded);
  }
}

const std::string kModels = STET_ROOT "/tests/data/tokenizer/";

}  // namespace

TEST(TokenizerDamage, TokenizerJson) {
  nlohmann::json json = small_json();
  json["added_tokens"] = {
      {{"id", 9}, {"content", "<s>"}, {"special", true}, {"normalized", false}, {"lstrip", true}},
      {{"id", 10}, {"content", "Now"}, {"special", false}, {"normalized", true}}};
  json["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "_"}};
  json["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}, {"split", true}};
  json["decoder"] = nlohmann::json::parse(
      R"({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "_"}, "content": " "},
          {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 1}]})");
  damage("tokenizer.json", json.dump(), {}, 20'000);
}

TEST(TokenizerDamage, PocketLlama) {
  damage("tokenizer.json", read_text(kLlama + "/tokenizer.json"),
         {{"tokenizer_config.json", read_text(kLlama + "/tokenizer_config.json")}}, 500);
}

TEST(TokenizerDamage, TokenizerConfig) {
  damage("tokenizer_config.json", read_text(kLlama + "/tokenizer_config.json"),
         {{"tokenizer.json", read_text(kLlama + "/tokenizer.json")}}, 300);
  std::string config =
      R"({"bos_token": "a", "eos_token": {"content": "b"}, "add_bos_token": true, "chat_template":
      [{"name": "default", "template": "x"}], "added_tokens_decoder": {"9": {"content": "<s>", "special": true}},
      "additional_special_tokens": ["c"], "extra_special_tokens": {"x": "_a"}})";
  damage("tokenizer_config.json", config, {{"tokenizer.json", small_json().dump()}}, 5'000);
}

TEST(TokenizerDamage, TokenizerModels) {
  NEEDS(Sentencepiece);
  damage("tokenizer.model", read_text(kGemma + "/tokenizer.model"),
         {{"tokenizer_config.json", read_text(kGemma + "/tokenizer_config.json")}}, 1'500);
  damage("tokenizer.model", read_text(kModels + "unigram.model"), {}, 4'000);
  damage("tokenizer.model", read_text(kModels + "bpe.model"), {}, 2'000);
}

// The library follows the character map's indices unchecked, so every index is changed here.
TEST(TokenizerDamage, EveryByteOfTheCharacterMap) {
  NEEDS(Sentencepiece);
  const std::string model = read_text(kModels + "unigram.model");
  const size_t name = model.find("user_defined");
  ASSERT_NE(name, std::string::npos);
  std::mt19937 random(7);
  size_t loaded = 0;
  for (size_t at = name; at < model.size(); ++at) {
    for (const int bit : {0, 3, 7}) {
      std::string bytes = model;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
      use({{"tokenizer.model", bytes}}, random, loaded);
    }
  }
  EXPECT_GT(loaded, 0u);
}

TEST(TokenizerDamage, ErrorsOfModelsSayWhere) {
  NEEDS(Sentencepiece);
  const auto error = [](const std::string& bytes) {
    return message_of([&] { Tokenizer::load_from_files({{"tokenizer.model", bytes}}); });
  };
  EXPECT_EQ(error(""), "tokenizer.model: pieces: expected at least one, found none");
  EXPECT_EQ(error("\x0A\x05"), "tokenizer.model: byte 2: expected 5 more bytes, found 0");
  EXPECT_EQ(error("\x0B"),
            "tokenizer.model: byte 1: expected a protocol buffer, found wire type 3");
  EXPECT_EQ(error("\x0A\x03\x0A\x01"
                  "a"),
            "tokenizer.model: pieces: expected one piece of type UNKNOWN, found 0");
  EXPECT_EQ(error("\x0A\x05\x0A\x01"
                  "a\x18\x02\x0A\x03\x0A\x01"
                  "a"),
            "tokenizer.model: pieces[1]: expected each piece once, found a twice");
  EXPECT_EQ(error("\x0A\x05\x0A\x01"
                  "a\x18\x09"),
            "tokenizer.model: pieces[0].type: expected 1..6, found 9");
  EXPECT_EQ(error("\x0A\x05\x0A\x01"
                  "a\x18\x02\x12\x02\x18\x04"),
            "tokenizer.model: trainer_spec.model_type: expected 1 (unigram) or 2 (BPE), found 4");
}

}  // namespace stet::test::tokenizer_damage_tests
