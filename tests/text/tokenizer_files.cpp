// Files of a tokenizer beside tokenizer.json: templates, added tokens, vocab.json with merges.txt.
#include "src/files/additional_templates.hpp"
#include "stet/chat/template.hpp"
#include "stet/checkpoint/overrides.hpp"
#include "stet/text/tokenizer_warnings.hpp"
#include "tests/support/files.hpp"
#include "tests/text/tokenizer_testing.hpp"

namespace stet::test::tokenizer_files_tests {
namespace {

using jinja::Value;
using nlohmann::json;

json config_of(const std::string& directory) {
  return json::parse(read_text(directory + "/tokenizer_config.json"));
}

// Copies the pocket model's tokenizer to a directory, with another tokenizer_config.json.
void copy_pocket(const std::string& directory, const json& config) {
  write_file(directory + "/tokenizer.json", read_text(kLlama + "/tokenizer.json"));
  write_file(directory + "/tokenizer_config.json", config.dump());
}

std::string rendered(const Tokenizer& tokenizer, bool tools) {
  const Value messages = Value::from_json(R"([{"role": "user", "content": "hi"}])", "messages"),
              variables = Value::from_json(tools ? R"({"tools": [1, 2]})" : "{}", "variables");
  return ChatTemplate(tokenizer).render(messages, false, variables, 0).bytes;
}

// Returns vocab.json and merges.txt of the reduced tokenizer of GPT-2.
Tokenizer::Files merges_of(const std::string& directory) {
  const json published = json::parse(read_text(directory + "/tokenizer.json"));
  json vocab = published["model"]["vocab"];
  std::string merges = "#version: 0.2\n";
  for (const json& merge : published["model"]["merges"]) {
    merges += merge.is_string() ? merge.get<std::string>()
                                : merge[0].get<std::string>() + " " + merge[1].get<std::string>();
    merges += "\r\n";
  }
  return {{"vocab.json", vocab.dump()}, {"merges.txt", merges + "\n"}};
}

}  // namespace

TEST(ChatTemplates, TemplateFilesOverrideTheConfig) {
  const TemporaryDirectory directory;
  json config = config_of(kLlama);
  config["chat_template"] = "C";
  copy_pocket(directory.path(), config);
  EXPECT_EQ(rendered(*Tokenizer::load(directory.path()), true), "C");
  std::filesystem::create_directory(directory.path() + "/additional_chat_templates");
  write_file(directory.path() + "/chat_template.jinja", "J");
  write_file(directory.path() + "/additional_chat_templates/tool_use.jinja",
             "T{{ tools|length }}\n");
  write_file(directory.path() + "/additional_chat_templates/rag.jinja", "R");
  write_file(directory.path() + "/additional_chat_templates/notes.txt", "N");
  const auto tokenizer = Tokenizer::load(directory.path());
  EXPECT_EQ(tokenizer->chat_template(), "J");
  EXPECT_EQ(tokenizer->chat_template("rag"), "R");
  EXPECT_EQ(tokenizer->chat_template("notes"), "");
  EXPECT_EQ(rendered(*tokenizer, false), "J");
  EXPECT_EQ(rendered(*tokenizer, true), "T2");
  EXPECT_EQ(tokenizer->chat_template_place(), directory.path() + "/chat_template.jinja");
  write_file(directory.path() + "/additional_chat_templates/tool_use.jinja", "{% if x %}");
  EXPECT_EQ(message_of([&] { ChatTemplate(*Tokenizer::load(directory.path())); }),
            directory.path() +
                "/additional_chat_templates/tool_use.jinja: line 1 column 11: expected {% elif %} "
                "or {% else %} or {% endif %}, found the end of the template");
  write_file(directory.path() + "/additional_chat_templates/tool_use.jinja",
             "T{{ tools|length }}\n");
  // Packed and archived tokenizers have the templates in one file, but not beside another template.
  const auto again = Tokenizer::load_from_files(tokenizer->files());
  EXPECT_EQ(again->chat_template("rag"), "R");
  EXPECT_EQ(again->fingerprint(), tokenizer->fingerprint());
  const auto source = directory_source(directory.path());
  EXPECT_EQ(source->read(kAdditionalTemplates, 1000),
            R"({"rag":"R","tool_use":"T{{ tools|length }}\n"})");
  EXPECT_EQ(
      rendered(*Tokenizer::load(*overridden(source, {.chat_template = "O", .eos_ids = {}})), true),
      "O");
}

TEST(ChatTemplates, AdditionalTemplatesKeepTheDefaultOne) {
  const TemporaryDirectory directory;
  json config = config_of(kLlama);
  config["chat_template"] = "C";
  copy_pocket(directory.path(), config);
  std::filesystem::create_directory(directory.path() + "/additional_chat_templates");
  write_file(directory.path() + "/additional_chat_templates/tool_use.jinja", "T");
  const auto tokenizer = Tokenizer::load(directory.path());
  EXPECT_EQ(rendered(*tokenizer, false), "C");
  EXPECT_EQ(rendered(*tokenizer, true), "T");
}

TEST(ChatTemplates, TheProcessorsTemplateIsTheFallback) {
  const TemporaryDirectory directory;
  json config = config_of(kLlama);
  copy_pocket(directory.path(), config);
  write_file(directory.path() + "/chat_template.json", R"({"chat_template": "P"})");
  EXPECT_NE(rendered(*Tokenizer::load(directory.path()), false), "P");
  config.erase("chat_template");
  copy_pocket(directory.path(), config);
  EXPECT_EQ(rendered(*Tokenizer::load(directory.path()), false), "P");
}

TEST(ChatTemplates, AListWithoutADefaultIsForToolsAlone) {
  const TemporaryDirectory directory;
  json config = config_of(kLlama);
  config["chat_template"] = {{{"name", "tool_use"}, {"template", "T"}}};
  copy_pocket(directory.path(), config);
  const auto tokenizer = Tokenizer::load(directory.path());
  EXPECT_EQ(tokenizer->chat_template(), "");
  EXPECT_EQ(tokenizer->chat_template("tool_use"), "T");
}

TEST(TokenizerFiles, AddedTokensOfTheirOwnFile) {
  json config = config_of(kLlama);
  config.erase("added_tokens_decoder");
  config["pad_token"] = "<pad>";
  Tokenizer::Files files = {{"tokenizer.json", read_text(kLlama + "/tokenizer.json")},
                            {"tokenizer_config.json", config.dump()}};
  const auto before = Tokenizer::load_from_files(files);
  const int32_t first = before->size();
  files.emplace_back("added_tokens.json",
                     json{{"<pad>", first + 1}, {"<tool_call>", first}}.dump());
  const auto tokenizer = Tokenizer::load_from_files(files);
  EXPECT_EQ(tokenizer->size(), first + 2);
  EXPECT_EQ(tokenizer->encode("<tool_call><pad>", Bos::off), (Ids{first, first + 1}));
  EXPECT_FALSE(tokenizer->is_special(first));
  EXPECT_TRUE(tokenizer->is_special(first + 1));
  // The file has no effect if tokenizer_config.json lists added tokens.
  config["added_tokens_decoder"] = json::object();
  files[1].second = config.dump();
  EXPECT_EQ(Tokenizer::load_from_files(files)->size(), first);
}

TEST(TokenizerFiles, VocabAndMergesAreThePublishedTokenizer) {
  const std::string directory = STET_ROOT "/tests/data/tokenizer/gpt2";
  const json golden = json::parse(read_text(directory + "/golden.json"));
  Tokenizer::Files files = merges_of(directory);
  files.emplace_back("tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer"})");
  const auto tokenizer = Tokenizer::load_from_files(files);
  for (const json& entry : golden["encode"]) {
    const std::string text = entry["text"];
    EXPECT_EQ(tokenizer->encode(text, Bos::off), entry["ids"].get<Ids>()) << text;
    EXPECT_EQ(tokenizer->decode(entry["ids"].get<Ids>()), entry["decoded"].get<std::string>());
  }
  const int32_t end = *tokenizer->find_id("<|endoftext|>");
  EXPECT_EQ(tokenizer->eos(), end);
  EXPECT_EQ(tokenizer->encode("<|endoftext|>", Bos::off), (Ids{end}));
  EXPECT_TRUE(tokenizer->is_special(end));
  // Without a class, the model's type decides which rules apply.
  files[2] = {"config.json", R"({"model_type": "gpt2"})"};
  EXPECT_EQ(Tokenizer::load_from_files(files)->fingerprint(), tokenizer->fingerprint());
}

TEST(TokenizerFiles, VocabAndMergesOfQwen) {
  const std::string directory = STET_ROOT "/tests/data/tokenizer/gpt2";
  Tokenizer::Files files = merges_of(directory);
  files.emplace_back("tokenizer_config.json", R"({"tokenizer_class": "Qwen2TokenizerFast"})");
  const auto tokenizer = Tokenizer::load_from_files(files);
  EXPECT_FALSE(tokenizer->bos());
  // Each digit is a word of its own, and has no space before it.
  EXPECT_EQ(tokenizer->encode(" 12", Bos::off).size(), 3u);
}

TEST(TokenizerFiles, VocabAndMergesOfAnotherClassAreRefusedByName) {
  const std::string directory = STET_ROOT "/tests/data/tokenizer/gpt2";
  Tokenizer::Files files = merges_of(directory);
  files.emplace_back("tokenizer_config.json", R"({"tokenizer_class": "PreTrainedTokenizerFast"})");
  EXPECT_EQ(message_of([&] { Tokenizer::load_from_files(files, "d/"); }),
            "d/vocab.json: tokenizer_class: expected GPT2Tokenizer or Qwen2Tokenizer, which say "
            "how vocab.json and merges.txt split text, or a tokenizer.json, found "
            "PreTrainedTokenizerFast");
  files = {{"vocab.json", "[1]"}, {"merges.txt", ""}};
  EXPECT_EQ(message_of([&] { Tokenizer::load_from_files(files); }),
            "vocab.json: expected a JSON object, found array");
  const TemporaryDirectory alone;
  write_file(alone.path() + "/vocab.json", "{}");
  EXPECT_EQ(message_of([&] { Tokenizer::load(alone.path()); }),
            alone.path() +
                "/: expected tokenizer.json or tokenizer.model, found vocab.json without "
                "merges.txt");
}

TEST(TokenizerWarnings, NameMarksThatAreSplit) {
  json document = small_json();
  document["model"]["vocab"]["<end_of_turn>"] = 9;
  document["model"]["vocab"]["[INST]"] = 10;
  document["model"]["vocab"]["<x y>"] = 11;
  const std::string config =
      R"({"chat_template": "<end_of_turn>{{ messages[0] }}[INST]<x y><absent><end_of_turn>"})";
  EXPECT_EQ(tokenizer_warnings(*from_json(document, config)),
            (std::vector<std::string>{
                "the vocabulary has <end_of_turn>, [INST] of the chat template as ordinary pieces, "
                "not as marks: they are split into letters, which the model was hardly trained "
                "with"}));
  document["added_tokens"] = {{{"id", 9}, {"content", "<end_of_turn>"}},
                              {{"id", 10}, {"content", "[INST]"}}};
  EXPECT_TRUE(tokenizer_warnings(*from_json(document, config)).empty());
  for (const std::string& pocket : {kGemma, kLlama})
    EXPECT_TRUE(tokenizer_warnings(*Tokenizer::load(pocket)).empty());
}

}  // namespace stet::test::tokenizer_files_tests
