// Text from files and pipes in the encodings of other systems, and malformed scripts.
#include "tools/prompt/text_input.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/error_of.hpp"
#include "tests/support/files.hpp"
#include "tests/support/run_command.hpp"

namespace stet::test::text_input_tests {
namespace {

using Json = nlohmann::json;

// Encodes code points below 0x10000 as UTF-16.
std::string utf16(const std::u16string& text, bool little, bool mark = true) {
  std::string bytes;
  const auto put = [&](char16_t unit) {
    const char low = static_cast<char>(unit), high = static_cast<char>(unit >> 8);
    bytes += little ? low : high;
    bytes += little ? high : low;
  };
  if (mark) put(0xfeff);
  for (const char16_t unit : text) put(unit);
  return bytes;
}

TEST(TextInput, OtherEncodingsBecomeUtf8) {
  const auto text = [](const std::string& bytes) { return tool::as_text(bytes, "f"); };
  EXPECT_EQ(text("a\r\nb\rc\n\r\n"), "a\nb\rc\n\n");
  EXPECT_EQ(text("\xef\xbb\xbf"
                 "a\xef\xbb\xbf"),
            "a\xef\xbb\xbf");
  EXPECT_EQ(text(""), "");
  EXPECT_EQ(text(std::string("a\0b", 3)), std::string("a\0b", 3));
  for (const bool little : {true, false}) {
    EXPECT_EQ(text(utf16(u"Aé€\U0001F600\r\n", little)), "Aé€\U0001F600\n");
    EXPECT_EQ(text(utf16(u"", little)), "");
    EXPECT_EQ(error_of([&] { text(utf16(u"a", little) + "x"); }),
              "format: f: expected text in UTF-8 or UTF-16, found text that ends within a "
              "character");
    for (const std::u16string& half :
         {std::u16string(1, 0xd83d) + u"a", std::u16string(1, 0xde00), std::u16string(2, 0xd83d)})
      EXPECT_EQ(error_of([&] { text(utf16(half, little)); }),
                "format: f: expected text in UTF-8 or UTF-16, found half of a surrogate pair");
    EXPECT_EQ(error_of([&] { text(utf16(std::u16string(u"\0a", 2), little)); }),
              "format: f: expected text in UTF-8 or UTF-16, found a zero, as UTF-32 has it");
  }
}

// Byte order marks that arrive in pieces, and bytes that only begin like one.
TEST(TextInput, ComesByteByByte) {
  const auto text = [](const std::string& bytes) {
    tool::TextDecoder decoder("f");
    std::string all;
    for (const char byte : bytes) decoder.add(byte, &all);
    decoder.end(&all);
    return all;
  };
  for (const char* plain :
       {"", "a", "\xef", "\xef\xbb", "\xef\xbb\xbe", "\xff", "\xfe", "\xfe\xfe"})
    EXPECT_EQ(text(plain), plain);
  EXPECT_EQ(text("\xef\xbb\xbf"
                 "a\r\n"),
            "a\r\n");
  EXPECT_EQ(text(utf16(u"a€", true)), "a€");
  EXPECT_EQ(text(utf16(u"a€", false)), "a€");
}

class Scripts : public testing::Test {
 protected:
  void SetUp() override {
#ifndef STET_HAVE_SENTENCEPIECE
    GTEST_SKIP() << "built without a library for the tokenizers";
#endif
  }
  Outcome script(const std::string& content, const std::string& name = "s.json") const {
    write_file(scratch / name, content);
    return run_stet({"chat", "--threads", "1", "-n", "12", "--script", scratch / name});
  }
  std::string refusal(const std::string& content, const std::string& name = "s.json") const {
    const Outcome o = script(content, name);
    EXPECT_EQ(o.status, 1) << content;
    EXPECT_EQ(o.out, "") << content;  // no message reached the model
    const size_t at = o.err.find(scratch / name);
    return at == std::string::npos ? o.err : o.err.substr(at + (scratch / name).size() + 2);
  }

  TemporaryDirectory scratch;
};

TEST_F(Scripts, AreReadInAnyEncoding) {
  const std::string plain = R"([{"user": "Let a = 3.", "expect": "OK, a = 3."}])";
  const std::u16string wide = u"[{\"user\": \"Let a = 3.\", \"expect\": \"OK, a = 3.\"}]\r\n";
  const Outcome expected = script(plain);
  ASSERT_EQ(expected.status, 0) << expected.out << expected.err;
  for (const std::string& bytes :
       {"\xef\xbb\xbf" + plain + "\r\n", utf16(wide, true), utf16(wide, false)})
    EXPECT_EQ(script(bytes).out, expected.out);
  const Outcome lines = script("Let a = 3.\n", "s.txt");
  for (const std::string& bytes :
       {std::string("\xef\xbb\xbfLet a = 3.\r\n"), utf16(u"Let a = 3.\r\n", true)})
    EXPECT_EQ(script(bytes, "s.txt").out, lines.out);
}

TEST_F(Scripts, AreNeverSaidToTheModel) {
  const std::string turns = R"([{"user": "Let a = 3."}])";
  EXPECT_EQ(refusal(utf16(u"[{\"user\": \"Let a = 3.\"}]", true, false), "s.txt"),
            "expected JSON, or lines of text, found a zero byte (UTF-16 begins with a byte order "
            "mark)\n");
  EXPECT_EQ(refusal("// turns\n" + turns),
            "line 1, column 1: expected JSON, or lines of text, found '/': invalid literal\n");
  EXPECT_EQ(refusal("[{\"user\": \"a\",}]", "s.txt"),
            "line 1, column 15: expected JSON, or lines of text, found '\"a\",}': unexpected '}'; "
            "expected string literal\n");
  EXPECT_EQ(refusal("\"Let a = 3.\""), "turns: expected an array, found \"Let a = 3.\"\n");
}

TEST_F(Scripts, HaveNoOtherFields) {
  const std::string fields = "expected user, command, tool, expect, model, assistant or contains";
  EXPECT_EQ(refusal(R"([{"user": "a", "expected": "b"}])"),
            "turns[0].expected: " + fields + ": did you mean expect?, found \"b\"\n");
  EXPECT_EQ(refusal(R"(["a", {"user": "a", "contain": ["b"]}])"),
            "turns[1].contain: " + fields + ": did you mean contains?, found [\"b\"]\n");
  EXPECT_EQ(refusal(R"({"sytem": "b", "turns": []})"),
            "sytem: expected system or turns: did you mean system?, found \"b\"\n");
  EXPECT_EQ(refusal(R"([{"user": "a", "command": "/quit"}])"),
            "turns[0]: expected a string, or an object with user, command or tool, found "
            "{\"user\":\"a\",\"command\":\"/quit\"}\n");
  EXPECT_EQ(refusal(R"([{"user": "a", "expect": "b", "model": "c"}])"),
            "turns[0].model: expected one expected reply, found \"c\"\n");
}

TEST_F(Scripts, PromptFilesAndPipesAreTheSameText) {
  const auto ids = [&](const std::string& bytes, bool piped) {
    write_file(scratch / "p.txt", bytes);
    const Outcome o = run_stet({"generate", "--threads", "1", "-n", "1", "--json", "--prompt-file",
                                piped ? "-" : scratch / "p.txt"},
                               piped ? bytes : "");
    EXPECT_EQ(o.status, 0) << o.err;
    return Json::parse(o.out)["prompt_ids"];
  };
  const Json expected = ids("Let a = 3.\nWhat is a?\n", false);
  for (const bool piped : {true, false}) {
    for (const std::string& bytes :
         {std::string("\xef\xbb\xbfLet a = 3.\r\nWhat is a?\r\n"),
          utf16(u"Let a = 3.\r\nWhat is a?\r\n", true), utf16(u"Let a = 3.\nWhat is a?\n", false)})
      EXPECT_EQ(ids(bytes, piped), expected);
  }
  const auto chat = [](const std::string& typed) {
    return run_stet({"chat", "--threads", "1", "-n", "12"}, typed).out;
  };
  const std::string said = chat("Let a = 3.\n");
  EXPECT_NE(said, "");
  EXPECT_EQ(chat("\xef\xbb\xbfLet a = 3.\r\n"), said);
  EXPECT_EQ(chat(utf16(u"Let a = 3.\r\n", true)), said);
  EXPECT_EQ(chat(utf16(u"Let a = 3.", false)), said);
}

}  // namespace
}  // namespace stet::test::text_input_tests
