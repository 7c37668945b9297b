// The two pocket checkpoints, and properties of every tokenizer.
#include <algorithm>
#include <filesystem>
#include <random>
#include <thread>

#include "tests/support/files.hpp"
#include "tests/text/tokenizer_testing.hpp"

namespace stet::test::tokenizer_tests {
namespace {

struct Message {
  std::string role, text;
};

// The chat templates of the pocket checkpoints, written by hand.
std::string gemma_chat(const std::vector<Message>& messages) {
  std::string text = "<bos>";
  for (const Message& m : messages)
    text += "<start_of_turn>" + m.role + "\n" + m.text + "<end_of_turn>\n";
  return text;
}

std::string llama_chat(const std::vector<Message>& messages) {
  std::string text = "<|begin_of_text|>";
  for (const Message& m : messages) {
    const std::string role = m.role == "model" ? "assistant" : m.role;
    text += "<|start_header_id|>" + role + "<|end_header_id|>\n\n" + m.text + "<|eot_id|>";
  }
  return text;
}

std::vector<Message> messages_of(const nlohmann::json& turns, size_t count) {
  std::vector<Message> messages;
  for (size_t i = 0; i < count; ++i) {
    messages.push_back({"user", turns[i][0]});
    messages.push_back({"model", turns[i][1]});
  }
  return messages;
}

constexpr size_t kCut = 1500;  // the goldens end here

template <class Render>
void check_conversations(const std::string& model, const std::string& golden, const Render& render,
                         const std::string& generation_prompt) {
  const auto tokenizer = Tokenizer::load(model);
  const auto conversations =
      nlohmann::json::parse(read_text(kGoldens + golden + "/conversations.json"));
  ASSERT_EQ(conversations.size(), 40u);
  for (const auto& c : conversations) {
    const size_t turns = c["turns"].size(), prompt_turns = c["prompt_turns"];
    const std::string whole = render(messages_of(c["turns"], turns));
    const Ids ids = c["ids"];
    Ids encoded = tokenizer->encode(whole, Bos::off);
    if (ids.size() == kCut) {
      encoded.resize(kCut);
    } else {
      EXPECT_EQ(tokenizer->decode(ids), whole);
    }
    EXPECT_EQ(encoded, ids);
    EXPECT_EQ(streamed(*tokenizer, ids, false), whole.substr(0, tokenizer->decode(ids).size()));

    std::vector<Message> prompt = messages_of(c["turns"], prompt_turns);
    prompt.pop_back();
    EXPECT_EQ(tokenizer->encode(render(prompt) + generation_prompt, Bos::off),
              Ids(c["prompt_ids"]));
    const Ids greedy = c["greedy"];
    EXPECT_EQ(tokenizer->decode(std::span(greedy).first(greedy.size() - 1), true),
              std::string(c["greedy_text"]));
  }
}

}  // namespace

TEST(Tokenizer, PocketGemmaGivesTheIdsOfAllConversations) {
  NEEDS(Sentencepiece);
  check_conversations(kGemma, "gemma3", gemma_chat, "<start_of_turn>model\n");
}

TEST(Tokenizer, PocketLlamaGivesTheIdsOfAllConversations) {
  check_conversations(kLlama, "llama3", llama_chat,
                      "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

TEST(Tokenizer, PocketGemmaGivesTheIdsOfTheScript) {
  NEEDS(Sentencepiece);
  const auto tokenizer = Tokenizer::load(kGemma);
  const auto script = nlohmann::json::parse(read_text(kGoldens + "gemma3/script.json"));
  std::vector<Message> messages;
  const Ids ids = script["ids"];
  for (const auto& turn : script["turns"]) {
    messages.push_back({"user", turn["user"]});
    messages.push_back({"model", turn["model"]});
    const auto reply = std::span(ids).subspan(
        turn["reply_starts"], size_t(turn["reply_ends"]) - size_t(turn["reply_starts"]));
    EXPECT_EQ(tokenizer->decode(reply), std::string(turn["model"]) + "<end_of_turn>");
  }
  std::string text = gemma_chat(messages);
  text.pop_back();  // the script ends with the last reply's own token
  EXPECT_EQ(tokenizer->encode(text, Bos::off), ids);
}

TEST(Tokenizer, KnowsItsSpecialTokens) {
  NEEDS(Sentencepiece);
  const auto tokenizer = Tokenizer::load(kGemma);
  EXPECT_EQ(tokenizer->size(), 1620);
  EXPECT_EQ(tokenizer->bos(), 2);
  EXPECT_EQ(tokenizer->eos(), 1);
  EXPECT_EQ(tokenizer->find_id("<start_of_turn>"), 5);
  EXPECT_EQ(tokenizer->find_id("\u2581What"), 300);
  EXPECT_EQ(tokenizer->find_id("no such piece"), std::nullopt);
  EXPECT_EQ(tokenizer->piece(300), "\u2581What");
  EXPECT_TRUE(tokenizer->is_special(0));
  EXPECT_TRUE(tokenizer->is_special(3));
  EXPECT_FALSE(tokenizer->is_special(5));
  EXPECT_FALSE(tokenizer->is_special(-1));
  EXPECT_TRUE(tokenizer->chat_template().starts_with("{{ bos_token }}{% set offset = 0 %}"));
}

TEST(Tokenizer, PutsBosAsAskedFor) {
  NEEDS(Sentencepiece);
  const auto gemma = Tokenizer::load(kGemma);
  EXPECT_EQ(gemma->encode("What", Bos::off), (Ids{280}));
  EXPECT_EQ(gemma->encode("What", Bos::automatic), (Ids{2, 280}));
  EXPECT_EQ(gemma->encode("What", Bos::on), (Ids{2, 280}));
  EXPECT_EQ(gemma->encode("", Bos::automatic), (Ids{2}));
  EXPECT_EQ(gemma->encode("", Bos::off), Ids());
  const auto llama = Tokenizer::load(kLlama);
  EXPECT_EQ(llama->encode("", Bos::automatic), (Ids{930}));
  EXPECT_EQ(llama->bos(), 930);
  const std::string json = small_json().dump();
  const auto plain = Tokenizer::load_from_files({{"tokenizer.json", json}});
  EXPECT_EQ(message_of([&] { plain->encode("a", Bos::on); }),
            "bos: the tokenizer has no bos token; leave it out");
  const auto with_bos = from_json(small_json(), R"({"bos_token": "c"})");
  EXPECT_EQ(with_bos->encode("a", Bos::automatic), (Ids{1}));
  EXPECT_EQ(with_bos->encode("a", Bos::on), (Ids{3, 1}));
  EXPECT_EQ(llama->eos(), 934);
}

// Rendered chat templates begin with bos.
TEST(Tokenizer, ATextThatBeginsWithBosGetsNoSecondOne) {
  NEEDS(Sentencepiece);
  for (const auto& [directory, mark] :
       {std::pair(kGemma, "<bos>"), std::pair(kLlama, "<|begin_of_text|>")}) {
    const auto tokenizer = Tokenizer::load(directory);
    const std::string text = std::string(mark) + "What";
    Ids own = tokenizer->encode("What", Bos::off);
    own.insert(own.begin(), *tokenizer->bos());
    EXPECT_EQ(tokenizer->encode(text, Bos::off), own);
    EXPECT_EQ(tokenizer->encode(text), own);
    EXPECT_EQ(tokenizer->encode(mark), Ids{*tokenizer->bos()});
    Ids twice = own;
    twice.insert(twice.begin(), *tokenizer->bos());
    EXPECT_EQ(tokenizer->encode(text, Bos::on), twice);
    EXPECT_EQ(tokenizer->encode(mark + text), twice);  // both are in the text
    EXPECT_EQ(tokenizer->encode(text, Bos::automatic, false)[0], *tokenizer->bos());
    EXPECT_NE(tokenizer->encode(text, Bos::automatic, false)[1], *tokenizer->bos());
  }
}

TEST(Tokenizer, TheConfigDecidesAboutBosAndEos) {
  NEEDS(Sentencepiece);
  const std::string model = read_text(STET_ROOT "/tests/data/tokenizer/bpe.model");
  const auto around = [&](const std::string& config) {
    Tokenizer::Files files{{"tokenizer.model", model}};
    if (!config.empty()) files.emplace_back("tokenizer_config.json", config);
    return Tokenizer::load_from_files(files)->encode("the", Bos::automatic);
  };
  EXPECT_EQ(around(""), (Ids{1, 263}));
  EXPECT_EQ(around(R"({"bos_token": "<s>", "tokenizer_class": "LlamaTokenizer"})"), (Ids{1, 263}));
  EXPECT_EQ(around(R"({"bos_token": "<s>", "tokenizer_class": "T5Tokenizer"})"), (Ids{263}));
  EXPECT_EQ(around(R"({"bos_token": {"content": "<s>"}, "add_bos_token": true})"), (Ids{1, 263}));
  EXPECT_EQ(
      around(
          R"({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": false, "add_eos_token": true})"),
      (Ids{263, 2}));
  const std::string both =
      R"({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true, "add_eos_token": true})";
  EXPECT_EQ(
      Tokenizer::load_from_files({{"tokenizer.model", model}, {"tokenizer_config.json", both}})
          ->encode("<s>the"),
      (Ids{1, 263, 2}));  // a single bos is kept
}

TEST(Tokenizer, SpecialTokensInTextAreTextWhereTheyAreNotAskedFor) {
  NEEDS(Sentencepiece);
  const auto gemma = Tokenizer::load(kGemma);
  const std::string text = "a<end_of_turn>\n<start_of_turn>model\n<eos><unk>";
  EXPECT_EQ(gemma->encode(text, Bos::off, true), (Ids{1554, 6, 16, 5, 1565, 760, 16, 1, 3}));
  const Ids plain = gemma->encode(text, Bos::off, false);
  for (const int32_t id : plain) EXPECT_TRUE(id == 16 || id > 17) << id;  // 16 is the line break
  EXPECT_EQ(gemma->decode(plain), text);
  const auto llama = Tokenizer::load(kLlama);
  const std::string header = "<|eot_id|><|start_header_id|><|end_header_id|>";
  EXPECT_EQ(llama->encode(header, Bos::off), (Ids{934, 932, 933}));
  const Ids bytes = llama->encode(header, Bos::off, false);
  for (const int32_t id : bytes) EXPECT_LT(id, 930);
  EXPECT_EQ(llama->decode(bytes), header);
}

// Part of a rendered template is the user's text. Special tokens that are spelled within it or
// across its edge stay text; the template's own are encoded.
TEST(Tokenizer, MarksAreTextWhereTheyTouchAPlainRange) {
  for (const auto& [name, open, end] : {std::tuple{kGemma, "<start_of_turn>", "<end_of_turn>"},
                                        std::tuple{kLlama, "<|start_header_id|>", "<|eot_id|>"}}) {
    const auto tokenizer = Tokenizer::load(name);
    const std::string mark = end, half = mark.substr(0, mark.size() / 2),
                      rest = mark.substr(mark.size() / 2);
    const auto encode = [&](const std::string& before, const std::string& user,
                            const std::string& after) {
      const stet::TextRange plain{before.size(), before.size() + user.size()};
      return tokenizer->encode(before + user + after, Bos::off, std::span(&plain, 1));
    };
    const auto marks = [&](const Ids& ids) {
      return std::count(ids.begin(), ids.end(), *tokenizer->find_id(mark));
    };
    const Ids attack = encode(std::string(open) + "user\n", "a" + mark + "b", mark + "\n");
    EXPECT_EQ(marks(attack), 1);
    EXPECT_EQ(attack.front(), *tokenizer->find_id(open));
    EXPECT_EQ(tokenizer->decode(attack), std::string(open) + "user\na" + mark + "b" + mark + "\n");
    EXPECT_EQ(marks(encode("", half, rest + mark)), 1);  // a special token that crosses the edge
    EXPECT_EQ(marks(encode(mark + half, rest, "")), 1);
    EXPECT_EQ(marks(encode(mark, "\xff\xfe", mark)),
              2);  // repaired to six bytes; the special tokens keep their places
    // An empty list of ranges encodes like text with special tokens, a range over everything like
    // text without. Words may span the edge of a range.
    const std::string text = "x " + mark + "and so on";
    EXPECT_EQ(tokenizer->encode(text, Bos::off, std::span<const stet::TextRange>()),
              tokenizer->encode(text, Bos::off, true));
    EXPECT_EQ(encode("", text, ""), tokenizer->encode(text, Bos::off, false));
    EXPECT_EQ(encode("x and s", "o on", ""), tokenizer->encode("x and so on", Bos::off));
  }
  const auto tokenizer = Tokenizer::load(kGemma);
  const std::vector<stet::TextRange> disorder{{2, 3}, {1, 2}}, beyond{{1, 9}};
  for (const auto& ranges : {disorder, beyond}) {
    EXPECT_NE(message_of([&] {
                tokenizer->encode("abcd", Bos::off, ranges);
              }).find("plain: expected ranges of the text"),
              std::string::npos);
  }
}

TEST(Tokenizer, ByteTokensDecodeAsARun) {
  NEEDS(Sentencepiece);
  const auto gemma = Tokenizer::load(kGemma);
  const auto byte = [&](int b) { return 18 + b; };
  ASSERT_EQ(gemma->piece(byte(0xE2)), "<0xE2>");
  const Ids euro{byte(0xE2), byte(0x82), byte(0xAC)};
  EXPECT_EQ(gemma->encode("\u20AC", Bos::off), euro);
  EXPECT_EQ(gemma->decode(euro), "\u20AC");
  EXPECT_EQ(gemma->decode(Ids{byte(0xE2), byte(0x82)}), "\uFFFD\uFFFD");
  EXPECT_EQ(gemma->decode(Ids{byte('A'), byte(0xFF), byte('B')}), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(gemma->decode(Ids{byte('A'), 1554, byte(0xFF)}), "Aa\uFFFD");
}

TEST(Tokenizer, IllFormedInputIsReadAsReplacementCharacters) {
  NEEDS(Sentencepiece);
  const auto gemma = Tokenizer::load(kGemma);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a\xFFz", "a\uFFFDz"},
      {"\xF0\x9F\x98", "\uFFFD"},  // one cut-off character
      {"\xE2\x82z", "\uFFFDz"},
      {"\xC0\x80", "\uFFFD\uFFFD"},                      // overlong
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},            // a surrogate
      {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},  // above U+10FFFF
      {"\x80\x80", "\uFFFD\uFFFD"},
      {"\xF0\x9F\xF0\x9F\x98\x80", "\uFFFD\U0001F600"},
  };
  for (const auto& [broken, mended] : cases) {
    EXPECT_EQ(gemma->encode(broken), gemma->encode(mended));
    EXPECT_EQ(gemma->decode(gemma->encode(broken, Bos::off)), mended);
  }
}

TEST(Tokenizer, RandomTextComesBack) {
  std::mt19937 random(1);
  for (const std::string& directory : {kGemma, kLlama}) {
    if (directory == kGemma && !kHaveSentencepiece) continue;
    const auto tokenizer = Tokenizer::load(directory);
    for (int i = 0; i < 2000; ++i) {
      std::string text = random_text(random, random() % 60);
      if (directory == kGemma) text = replaced(text, "\u2581", " ");  // its sign for a space
      const Ids ids = tokenizer->encode(text, Bos::off);
      EXPECT_EQ(tokenizer->decode(ids), text);
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(text, Bos::off, false)), text);
      const std::string bytes = random_bytes(random, random() % 20);
      EXPECT_EQ(tokenizer->encode(bytes), tokenizer->encode(stet::utf8_lossy(bytes)));
    }
  }
}

TEST(Tokenizer, StreamedTextIsDecodedTextAtEveryCut) {
  std::mt19937 random(2);
  for (const std::string& directory : {kGemma, kLlama}) {
    if (directory == kGemma && !kHaveSentencepiece) continue;
    const auto tokenizer = Tokenizer::load(directory);
    for (int i = 0; i < 1000; ++i) {
      Ids ids;
      const size_t count = random() % 30;
      // Half of the draws come from the first 300 ids, which include bytes of both vocabularies and
      // special tokens.
      for (size_t k = 0; k < count; ++k) {
        ids.push_back(static_cast<int32_t>(
            random() % (random() % 2 ? 300u : static_cast<unsigned>(tokenizer->size()))));
      }
      for (const bool skip : {false, true}) {
        const std::string whole = tokenizer->decode(ids, skip);
        EXPECT_TRUE(stet::utf8_valid(whole));
        EXPECT_EQ(streamed(*tokenizer, ids, skip), whole);
        // Cuts the stream anywhere and continues with its state in another stream.
        const size_t cut = count == 0 ? 0 : random() % count;
        stet::TextStream first(*tokenizer, skip), second(*tokenizer, skip);
        std::string text;
        for (size_t k = 0; k < cut; ++k) text += first.push(ids[k]);
        second.restore(first.state());
        EXPECT_EQ(second.pending(), first.pending());
        for (size_t k = cut; k < count; ++k) text += second.push(ids[k]);
        EXPECT_EQ(text + second.finish(), whole);
        EXPECT_EQ(second.pending(), "");
      }
    }
  }
}

TEST(Tokenizer, AStreamHoldsBytesUntilTheyAreACharacter) {
  const auto llama = Tokenizer::load(kLlama);
  const Ids smile = llama->encode("\U0001F600", Bos::off);
  ASSERT_EQ(smile.size(), 4u);
  stet::TextStream stream(*llama, false);
  EXPECT_EQ(stream.push(smile[0]), "");
  EXPECT_EQ(stream.pending(), "\xF0");
  EXPECT_EQ(stream.push(smile[1]), "");
  EXPECT_EQ(stream.push(smile[2]), "");
  EXPECT_EQ(stream.pending(), "\xF0\x9F\x98");
  const std::string state = stream.state();
  EXPECT_EQ(stream.push(smile[3]), "\U0001F600");
  EXPECT_EQ(stream.pending(), "");
  stream.restore(state);
  EXPECT_EQ(stream.push(*llama->find_id("a")), "\uFFFDa");
  stream.restore(state);
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(message_of([&] { stream.restore(state.substr(1)); }),
            "text stream: expected the state of one with this decoder, found too few bytes");
  EXPECT_EQ(message_of([&] { stream.restore(state + "x"); }),
            "text stream: expected the state of one with this decoder, found too many bytes");
}

TEST(Tokenizer, IdsOutOfRangeAreErrors) {
  NEEDS(Sentencepiece);
  const auto gemma = Tokenizer::load(kGemma);
  EXPECT_EQ(message_of([&] {
              gemma->decode(Ids{5, 1620});
            }),
            "token id: expected 0..1619, found 1620");
  EXPECT_EQ(message_of([&] { gemma->decode(Ids{-1}); }), "token id: expected 0..1619, found -1");
  EXPECT_EQ(message_of([&] { gemma->piece(INT32_MAX); }),
            "token id: expected 0..1619, found 2147483647");
  stet::TextStream stream(*gemma, false);
  EXPECT_EQ(stream.push(18 + 0xE2), "");
  EXPECT_EQ(message_of([&] { stream.push(4000); }), "token id: expected 0..1619, found 4000");
  EXPECT_EQ(stream.pending(), "\xE2");
}

TEST(Tokenizer, IsRebuiltFromItsFiles) {
  for (const std::string& directory : {kGemma, kLlama}) {
    if (directory == kGemma && !kHaveSentencepiece) continue;
    const auto tokenizer = Tokenizer::load(directory);
    const auto again = Tokenizer::load_from_files(tokenizer->files());
    EXPECT_EQ(again->fingerprint(), tokenizer->fingerprint());
    EXPECT_EQ(again->chat_template(), tokenizer->chat_template());
    EXPECT_EQ(again->encode("What is k?"), tokenizer->encode("What is k?"));
  }
}

TEST(Tokenizer, FingerprintsArePinned) {
  NEEDS(Sentencepiece);
  EXPECT_EQ(Tokenizer::load(kGemma)->fingerprint(), "xxh3:b93e06e0212d6f3f5bb401f205cc4f04");
  EXPECT_EQ(Tokenizer::load(kLlama)->fingerprint(), "xxh3:a5f36bb380cd386483f151ad71232257");
}

TEST(Tokenizer, MissingFilesAreNamed) {
  EXPECT_EQ(
      message_of([] { Tokenizer::load("/no/such/place"); }),
      "/no/such/place: expected a checkpoint directory or a .gguf file, found nothing of that "
      "name");
  const std::string directory = testing::TempDir() + "stet_tokenizer_test";
  std::filesystem::create_directories(directory + "/tokenizer.json");
  EXPECT_EQ(message_of([&] { Tokenizer::load(directory); }),
            directory + "/tokenizer.json: cannot be read");
  std::filesystem::remove_all(directory);
}

TEST(Tokenizer, FingerprintsCoverEverythingThatAffectsIdsAndText) {
  const std::string base = from_json(small_json())->fingerprint();
  const auto changed = [](const char* patch, const std::string& config = "") {
    nlohmann::json json = small_json();
    json.merge_patch(nlohmann::json::parse(patch));
    return from_json(json, config)->fingerprint();
  };
  EXPECT_EQ(changed(R"({"version": "2.0", "padding": {"x": 1}})"), base);
  EXPECT_EQ(Tokenizer::load_from_files({{"tokenizer.json", small_json().dump(2)}})->fingerprint(),
            base);
  EXPECT_EQ(changed("{}", R"({"model_max_length": 5})"), base);
  EXPECT_NE(changed(R"({"model": {"vocab": {"d": 9}}})"), base);
  EXPECT_NE(changed(R"({"model": {"merges": ["ab c", "a b", "_ a"]}})"), base);
  EXPECT_NE(changed(R"({"model": {"fuse_unk": true}})"), base);
  EXPECT_NE(changed(R"({"normalizer": {"type": "Prepend", "prepend": "_"}})"), base);
  EXPECT_NE(changed(R"({"added_tokens": [{"id": 1, "content": "a"}]})"), base);
  EXPECT_NE(changed(R"({"added_tokens": [{"id": 1, "content": "a"}]})"),
            changed(R"({"added_tokens": [{"id": 1, "content": "a", "special": true}]})"));
  EXPECT_NE(changed("{}", R"({"bos_token": "a"})"), base);
  EXPECT_NE(changed("{}", R"({"chat_template": "x"})"), base);
}

TEST(Tokenizer, TheConfigsFieldsAreChecked) {
  const auto error = [](const char* config) {
    return message_of([&] { from_json(small_json(), config); });
  };
  EXPECT_EQ(error(R"({"bos_token": "x"})"),
            "tokenizer_config.json: bos_token: expected a token of the vocabulary, found x");
  EXPECT_EQ(error(R"({"eos_token": 5})"),
            "tokenizer_config.json: eos_token: expected a string, found 5");
  EXPECT_EQ(error(R"({"add_bos_token": "yes"})"),
            "tokenizer_config.json: add_bos_token: expected true or false, found \"yes\"");
  EXPECT_EQ(error(R"({"added_tokens_decoder": {"x": {"content": "y"}}})"),
            "tokenizer_config.json: added_tokens_decoder.x: expected an id as key, found "
            "{\"content\":\"y\"}");
  EXPECT_EQ(error(R"({"added_tokens_decoder": {"2": {"content": "y"}}})"),
            "tokenizer_config.json: added_tokens_decoder.2: expected an id of its own, found 2, "
            "that of b");
  EXPECT_EQ(error(R"({"chat_template": [{"name": "tool_use", "template": ""}]})"), "no error");
}

TEST(Tokenizer, OneTokenizerServesManyThreads) {
  const auto llama = Tokenizer::load(kLlama);
  const auto conversations =
      nlohmann::json::parse(read_text(kGoldens + "llama3/conversations.json"));
  const std::string text = llama->decode(Ids(conversations[0]["ids"]));
  const Ids expected = llama->encode(text);
  std::vector<std::thread> threads;
  std::vector<int> equal(4, 0);
  for (size_t t = 0; t < equal.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) equal[t] += llama->encode(text) == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, std::vector<int>(4, 50));
}

// Made with the sentencepiece trainer. The ids are those of its own processor.
TEST(Sentencepiece, UnigramWithACharacterMap) {
  NEEDS(Sentencepiece);
  Tokenizer::Files files{
      {"tokenizer.model", read_text(STET_ROOT "/tests/data/tokenizer/unigram.model")}};
  const auto tokenizer = Tokenizer::load_from_files(files);
  const std::vector<std::pair<std::string, Ids>> cases = {
      {"the cat sat", {261, 260, 268, 262, 264, 265}},
      {"  the  cat ", {261, 260, 268}},
      {"\uFF21\uFB01nd", {262, 69, 279, 271, 266}},
      {"cafe\u0301", {262, 284, 304, 279, 199, 173}},
      {"a\u00A0mat", {275, 274}},
      {"", {}},
      {"   ", {}},
      {"zebra 42", {262, 126, 260, 102, 285, 304, 292, 300}},
      {"\U0001F600!", {262, 244, 163, 156, 132, 37}},
  };
  for (const auto& [text, ids] : cases) EXPECT_EQ(tokenizer->encode(text, Bos::off), ids) << text;
  EXPECT_EQ(tokenizer->decode(cases[0].second), "the cat sat");
  EXPECT_EQ(tokenizer->encode("the<sep>", Bos::off), (Ids{261, 260, 3}));
}

TEST(Sentencepiece, BpeWithASpaceBeforeTheText) {
  NEEDS(Sentencepiece);
  const std::string model = read_text(STET_ROOT "/tests/data/tokenizer/bpe.model");
  const auto legacy = Tokenizer::load_from_files({{"tokenizer.model", model}});
  const std::vector<std::pair<std::string, Ids>> cases = {
      {"the cat sat", {263, 267, 300}},
      {"  the  cat ", {312, 312, 263, 312, 267, 312}},
      {"\uFF21\uFB01nd", {312, 242, 191, 164, 242, 175, 132, 320, 323}},
      {"cafe\u0301", {266, 314, 318, 315, 207, 132}},
      {"", {}},
      {"   ", {312, 312, 312, 312}},
      {"\U0001F600!", {312, 243, 162, 155, 131, 36}},
  };
  for (const auto& [text, ids] : cases) {
    EXPECT_EQ(legacy->encode(text, Bos::off), ids) << text;
    EXPECT_EQ(legacy->decode(ids), text);
    EXPECT_EQ(streamed(*legacy, ids, false), text);
  }
  // transformers' "legacy" decides whether a space is inserted again after a special token.
  EXPECT_EQ(legacy->encode("the</s>the", Bos::off), (Ids{263, 2, 263}));
  const auto modern = Tokenizer::load_from_files(
      {{"tokenizer.model", model}, {"tokenizer_config.json", R"({"legacy": false})"}});
  EXPECT_EQ(modern->encode("the</s>the", Bos::off), (Ids{263, 2, 260, 315}));
  EXPECT_NE(modern->fingerprint(), legacy->fingerprint());
}

TEST(Sentencepiece, ModelAndJsonOfOneVocabularyGiveTheSameIds) {
  NEEDS(Sentencepiece);
  const auto model = Tokenizer::load(kGemma);
  nlohmann::json json = small_json();
  nlohmann::json vocab = nlohmann::json::object(), merges = nlohmann::json::array();
  for (int32_t id = 0; id < model->size(); ++id) vocab[model->piece(id)] = id;
  for (int32_t id = 0; id < 18; ++id) {
    json["added_tokens"].push_back(
        {{"id", id}, {"content", model->piece(id)}, {"special", id < 4}, {"normalized", false}});
  }
  // Learned pieces are in the order in which they were learned, and their parts are pieces, too.
  for (int32_t id = 18 + 256; id < model->size(); ++id) {
    const std::string piece = model->piece(id);
    std::vector<std::pair<int32_t, int32_t>> splits;
    for (size_t at = 1; at < piece.size(); ++at) {
      const auto left = model->find_id(piece.substr(0, at)),
                 right = model->find_id(piece.substr(at));
      if (left && right) splits.emplace_back(*left, *right);
    }
    std::sort(splits.begin(), splits.end());
    for (const auto& [left, right] : splits)
      merges.push_back({model->piece(left), model->piece(right)});
  }
  json["model"]["vocab"] = vocab;
  json["model"]["merges"] = merges;
  json["model"]["byte_fallback"] = true;
  json["model"]["fuse_unk"] = true;
  json["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  json["decoder"] = nlohmann::json::parse(
      R"({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
          {"type": "ByteFallback"}, {"type": "Fuse"}]})");
  const auto same = from_json(json, read_text(kGemma + "/tokenizer_config.json"));
  std::mt19937 random(3);
  for (int i = 0; i < 500; ++i) {
    const std::string text = random_text(random, random() % 80);
    const Ids ids = model->encode(text);
    EXPECT_EQ(same->encode(text), ids);
    EXPECT_EQ(same->encode(text, Bos::off, false), model->encode(text, Bos::off, false));
    EXPECT_EQ(same->decode(ids), model->decode(ids));
  }
  const auto conversations =
      nlohmann::json::parse(read_text(kGoldens + "gemma3/conversations.json"));
  for (const auto& c : conversations) {
    EXPECT_EQ(same->encode(model->decode(Ids(c["ids"])), Bos::off), Ids(c["ids"]));
  }
}

}  // namespace stet::test::tokenizer_tests
