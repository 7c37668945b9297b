// `stet template`.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "stet/text/tokenizer.hpp"
#include "tests/support/run_command.hpp"

namespace stet::test::template_tests {

using nlohmann::ordered_json;
using stet::Tokenizer;

namespace {

#ifdef STET_HAVE_SENTENCEPIECE
constexpr bool kHaveSentencepiece = true;
#else
constexpr bool kHaveSentencepiece = false;
#endif
#define NEEDS_SENTENCEPIECE \
  if (!kHaveSentencepiece) GTEST_SKIP() << "built without sentencepiece"

TEST(TemplateCommand, Text) {
  NEEDS_SENTENCEPIECE;
  const Outcome o = run_stet({"template", "-p", "hi", "--system", "S", "--add-generation-prompt"});
  EXPECT_EQ(o.err, "");
  EXPECT_EQ(o.out, "<bos><start_of_turn>user\nS\n\nhi<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_EQ(o.status, 0);
  EXPECT_EQ(run_stet({"template", "--messages", R"([{"role": "user", "content": "hi"}])"}).out,
            "<bos><start_of_turn>user\nhi<end_of_turn>\n");
  EXPECT_EQ(
      run_stet({"template", "--messages-file", "-"}, R"([{"role": "user", "content": "hi"}])").out,
      "<bos><start_of_turn>user\nhi<end_of_turn>\n");
}

TEST(TemplateCommand, JsonAndIds) {
  NEEDS_SENTENCEPIECE;
  const auto tokenizer = Tokenizer::load(STET_ROOT "/assets/pocket-gemma3");
  const std::string text = "<bos><start_of_turn>user\nhi<end_of_turn>\n";
  const ordered_json expected = {{"text", text},
                                 {"ids", tokenizer->encode(text, Tokenizer::Bos::off)}};
  EXPECT_EQ(run_stet({"template", "-p", "hi", "--json"}).out, expected.dump() + "\n");
  EXPECT_TRUE(run_stet({"template", "-p", "hi", "--show-ids"})
                  .out.starts_with("       2  <bos>\n       5  <start_of_turn>\n"));
}

TEST(TemplateCommand, AnotherTemplateAndVariables) {
  const TemporaryDirectory scratch;
  write_file(scratch / "t.jinja",
             "{{ tools|tojson }}|{{ x + 1 }}|{{ y }}|{{ messages[0].content }}");
  write_file(scratch / "tools.json", R"([{"name": "f"}])");
  const Args args = {"template",
                     "-p",
                     "q",
                     "--chat-template",
                     scratch / "t.jinja",
                     "--tools",
                     scratch / "tools.json",
                     "--var",
                     "x=41",
                     "--var",
                     "y=\"a=b\""};
  EXPECT_EQ(run_stet(args).out, "[{\"name\": \"f\"}]|42|a=b|q");
}

TEST(TemplateCommand, Lines) {
  NEEDS_SENTENCEPIECE;
  const std::string lines =
      R"({"messages": [{"role": "user", "content": "hi"}]})"
      "\n"
      R"({"messages": [{"role": "assistant", "content": "hi"}]})"
      "\n"
      "no json\n"
      "5\n"
      R"({"messages": [{"role": "user", "content": "é"}], "add_generation_prompt": true, "tools": null})"
      "\n"
      R"({"messages": [{"role": "user", "content": 18446744073709551616}]})"
      "\n"
      R"({"messages": [], "add_generation_prompt": 1})"
      "\n"
      "{}\n";
  const Outcome o = run_stet({"template", "--jsonl"}, lines);
  EXPECT_EQ(o.status, 0) << o.err;
  std::istringstream in(o.out);
  std::vector<ordered_json> answers;
  for (std::string line; std::getline(in, line);) answers.push_back(ordered_json::parse(line));
  ASSERT_EQ(answers.size(), 8u);
  EXPECT_EQ(answers[0]["text"], "<bos><start_of_turn>user\nhi<end_of_turn>\n");
  EXPECT_EQ(answers[0]["ids"][0], 2);
  EXPECT_EQ(answers[1], (ordered_json{{"error", "user and assistant turns must alternate"}}));
  EXPECT_EQ(answers[2]["error"],
            "standard input: line 3: line 1 column 2: expected valid JSON, found 'no'");
  EXPECT_EQ(answers[3]["error"], "standard input: line 4: expected a JSON object, found 5");
  EXPECT_EQ(answers[4]["text"],
            "<bos><start_of_turn>user\n\u00E9<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_EQ(answers[5]["error"],
            "standard input: line 6: expected integers of 64 bits, found 18446744073709551616");
  EXPECT_EQ(
      answers[6]["error"],
      "standard input: line 7: add_generation_prompt: expected true or false, found another value");
  EXPECT_EQ(answers[7]["error"], "messages: expected a list of objects, found another value");
}

TEST(TemplateCommand, Refusals) {
  NEEDS_SENTENCEPIECE;
  const Outcome refused =
      run_stet({"template", "--messages", R"([{"role": "assistant", "content": "x"}])"});
  EXPECT_EQ(refused.status, 1);
  EXPECT_EQ(refused.out, "");
  EXPECT_TRUE(refused.err.find("found user and assistant turns must alternate\n") !=
              std::string::npos)
      << refused.err;
  EXPECT_EQ(run_stet({"template"}).status, 2);
  EXPECT_EQ(run_stet({"template", "-p", "x", "--jsonl"}).status, 2);
  EXPECT_EQ(run_stet({"template", "--jsonl", "--system", "x"}).status, 2);
  EXPECT_EQ(run_stet({"template", "-p", "x", "--var", "novalue"}).status, 2);
  EXPECT_EQ(run_stet({"template", "-p", "x", "--var", "a={"}).status, 2);
}

}  // namespace
}  // namespace stet::test::template_tests
