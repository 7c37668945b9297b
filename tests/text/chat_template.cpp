// Chat templates of checkpoints.
#include "stet/chat/template.hpp"

#include "tests/support/files.hpp"
#include "tests/text/tokenizer_testing.hpp"

namespace stet::test::chat_template_tests {

using nlohmann::ordered_json;
using stet::ChatTemplate;
using stet::jinja::Mark;
using stet::jinja::Refused;
using stet::jinja::Text;
using stet::jinja::Value;

namespace {

using Marks = std::vector<Mark>;

Value value_of(const ordered_json& json) { return Value::from_json(json.dump(), "test"); }

class GoldenChat : public testing::TestWithParam<const char*> {};

TEST_P(GoldenChat, RendersAndTokenizesAsTransformersDoes) {
  const std::string directory = fixtures() + "/tokenizers/" + GetParam();
  NEEDS_FIXTURE(directory);
  const auto tokenizer = Tokenizer::load(directory);
  const ChatTemplate chat(*tokenizer);
  const auto golden = ordered_json::parse(read_text(directory + "/golden.json"));
  ASSERT_EQ(golden["chat"].size(), 16u);
  for (const auto& entry : golden["chat"]) {
    ordered_json result;
    try {
      const Text text = chat.render(value_of(entry["messages"]), entry["add_generation_prompt"],
                                    Value::dict({}), 0);
      result = {{"text", text.bytes}, {"ids", tokenizer->encode(text.bytes, Bos::off)}};
    } catch (const Refused& refusal) {
      result = {{"error", refusal.found}};
    }
    for (const auto& [name, value] : result.items())
      EXPECT_EQ(value, entry.value(name, ordered_json())) << entry["messages"].dump();
  }
}

INSTANTIATE_TEST_SUITE_P(Real, GoldenChat, testing::Values("gemma3", "llama3_1"));

// The conversation that tested the pocket checkpoint. Its ids are those of the rendered turns.
TEST(Template, PocketConversation) {
  NEEDS(Sentencepiece);
  const std::string path = kGoldens + "gemma3/script.json";
  const auto script = ordered_json::parse(read_text(path));
  const auto tokenizer = Tokenizer::load(kGemma);
  ordered_json messages = ordered_json::array();
  for (const auto& turn : script["turns"]) {
    messages.push_back({{"role", "user"}, {"content", turn["user"]}});
    messages.push_back({{"role", "assistant"}, {"content", turn["model"]}});
  }
  const Ids expected = script["ids"];
  const Text text = ChatTemplate(*tokenizer).render(value_of(messages), false, Value::dict({}), 0);
  const Ids ids = tokenizer->encode(text.bytes, Bos::off);
  // The script ends with the reply's last token; the template adds a line break.
  ASSERT_GT(ids.size(), expected.size());
  EXPECT_EQ(Ids(ids.begin(), ids.begin() + static_cast<long>(expected.size())), expected);
}

TEST(Template, PocketCheckpoints) {
  NEEDS(Sentencepiece);
  const Value messages = value_of(
      {{{"role", "system"}, {"content", "Be brief. "}}, {{"role", "user"}, {"content", " hi"}}});
  EXPECT_EQ(ChatTemplate(*Tokenizer::load(kGemma)).render(messages, true, Value::dict({}), 0).bytes,
            "<bos><start_of_turn>user\nBe brief.\n\nhi<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_EQ(ChatTemplate(*Tokenizer::load(kLlama)).render(messages, true, Value::dict({}), 0).bytes,
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe "
            "brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
            "hi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
}

std::shared_ptr<const Tokenizer> tokenizer_with(const ordered_json& config) {
  return from_json(small_json(), config.dump());
}

Text render(const std::string& source, const ordered_json& messages,
            const ordered_json& variables = ordered_json::object(),
            const ordered_json& config = ordered_json::object()) {
  return ChatTemplate(source, "t", *tokenizer_with(config))
      .render(value_of(messages), false, value_of(variables), 0);
}

TEST(Template, MarksShowTheOriginOfText) {
  const std::string source =
      "<a>{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}{{ tools[0].name }}{{ "
      "bos_token }}";
  const Text text = render(
      source, {{{"role", "u"}, {"content", "<a>"}}, {{"role", "v"}, {"content", {"x", "y"}}}},
      {{"tools", {{{"name", "T"}}}}}, {{"bos_token", "a"}});
  EXPECT_EQ(text.bytes, "<a>[u|<a>][v|['x', 'y']]Ta");
  EXPECT_EQ(text.marks,
            (Marks{{4, 5, 0}, {6, 9, 0}, {11, 12, 1}, {15, 16, 1}, {20, 21, 1}, {24, 25, 2}}));
}

TEST(Template, NamesOfSpecialTokens) {
  const ordered_json config = {{"bos_token", "a"},
                               {"eos_token", {{"content", "b"}}},
                               {"unk_token", nullptr},
                               {"pad_token", "c"},
                               {"additional_special_tokens", {"a", "b"}},
                               {"extra_special_tokens", {{"image_token", "c"}}}};
  using Names = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(tokenizer_with(config)->special_tokens(), (Names{{"bos_token", "a"},
                                                             {"eos_token", "b"},
                                                             {"pad_token", "c"},
                                                             {"additional_special_tokens", "a"},
                                                             {"additional_special_tokens", "b"},
                                                             {"image_token", "c"}}));
  const std::string source =
      "{{ bos_token }}{{ eos_token }}{{ unk_token }}{{ additional_special_tokens }}{{ image_token "
      "}}";
  EXPECT_EQ(render(source, ordered_json::array(), ordered_json::object(), config).bytes,
            "ab['a', 'b']c");
  EXPECT_EQ(render(source, ordered_json::array(), {{"bos_token", "q"}}, config).bytes,
            "qb['a', 'b']c");
}

TEST(Template, MissingToolsAndDocumentsAreNone) {
  const std::string source =
      "{{ tools }} {{ documents }} {{ tools is defined }} {{ add_generation_prompt }} {{ "
      "enable_thinking is defined }}";
  EXPECT_EQ(render(source, ordered_json::array()).bytes, "None None True False False");
  EXPECT_EQ(
      render(source, ordered_json::array(), {{"tools", {1}}, {"enable_thinking", false}}).bytes,
      "[1] None True False True");
}

TEST(Template, OneOfSeveralNamedTemplates) {
  const auto tokenizer =
      tokenizer_with({{"chat_template",
                       {{{"name", "tool_use"}, {"template", "T{{ tools|length }}"}},
                        {{"name", "default"}, {"template", "D"}}}}});
  EXPECT_EQ(tokenizer->chat_template(), "D");
  EXPECT_EQ(tokenizer->chat_template("tool_use"), "T{{ tools|length }}");
  EXPECT_EQ(tokenizer->chat_template("rag"), "");
  const ChatTemplate chat(*tokenizer);
  const auto with = [&](const ordered_json& variables) {
    return chat.render(Value::list({}), false, value_of(variables), 0).bytes;
  };
  EXPECT_EQ(with(ordered_json::object()), "D");
  EXPECT_EQ(with({{"tools", nullptr}}), "D");
  EXPECT_EQ(with({{"tools", {1, 2}}}), "T2");
}

TEST(Template, AnInvalidConversationIsAnError) {
  const auto error = [](const ordered_json& messages, const ordered_json& variables) {
    return message_of([&] { render("x", messages, variables); });
  };
  EXPECT_EQ(error("a", ordered_json::object()),
            "messages: expected a list of objects, found another value");
  EXPECT_EQ(error({1}, ordered_json::object()),
            "messages: expected a list of objects, found a list of other values");
  EXPECT_EQ(error(ordered_json::array(), {1}),
            "variables: expected an object, found another value");
  EXPECT_EQ(error(ordered_json::array(), {{"messages", 1}}),
            "variables: expected names beside messages and add_generation_prompt, found messages");
  EXPECT_EQ(message_of([] { ChatTemplate{*tokenizer_with(ordered_json::object())}; }),
            "chat_template: the tokenizer has no chat template; give one (--chat-template FILE), "
            "or raw text");
  EXPECT_EQ(message_of([] {
              ChatTemplate{*tokenizer_with({{"chat_template", "\n{{"}})};
            }),
            "tokenizer_config.json: chat_template: line 2 column 1: expected }} at the end of this "
            "tag, found the end of the template");
}

}  // namespace
}  // namespace stet::test::chat_template_tests
