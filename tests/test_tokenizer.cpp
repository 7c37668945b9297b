// The two pocket checkpoints, and what holds for every tokenizer.
#include <thread>

#include "tokenizer_testing.hpp"

using namespace stet_test;

namespace {

struct Message {
  std::string role, text;
};

// The chat templates of the pocket checkpoints, by hand.
std::string gemma_chat(const std::vector<Message>& messages) {
  std::string text = "<bos>";
  for (const Message& m : messages) text += "<start_of_turn>" + m.role + "\n" + m.text + "<end_of_turn>\n";
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

#define NEEDS_SENTENCEPIECE() \
  if (!kHaveSentencepiece) GTEST_SKIP() << "built without sentencepiece"
#define NEEDS_PCRE2() \
  if (!kHavePcre2) GTEST_SKIP() << "built without PCRE2"
#ifdef STET_HAVE_SENTENCEPIECE
constexpr bool kHaveSentencepiece = true;
#else
constexpr bool kHaveSentencepiece = false;
#endif
#ifdef STET_HAVE_PCRE2
constexpr bool kHavePcre2 = true;
#else
constexpr bool kHavePcre2 = false;
#endif

constexpr size_t kCut = 1500;  // the goldens end there

template <class Render>
void check_conversations(const std::string& model, const std::string& golden, const Render& render,
                         const std::string& generation_prompt) {
  const auto tokenizer = Tokenizer::load(model);
  const auto conversations = nlohmann::json::parse(read_bytes(kGoldens + golden + "/conversations.json"));
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
    EXPECT_EQ(tokenizer->encode(render(prompt) + generation_prompt, Bos::off), Ids(c["prompt_ids"]));
    const Ids greedy = c["greedy"];
    EXPECT_EQ(tokenizer->decode(std::span(greedy).first(greedy.size() - 1), true), std::string(c["greedy_text"]));
  }
}

}  // namespace

TEST(Tokenizer, PocketGemmaGivesTheIdsOfAllConversations) {
  NEEDS_SENTENCEPIECE();
  check_conversations(kGemma, "gemma3", gemma_chat, "<start_of_turn>model\n");
}

TEST(Tokenizer, PocketLlamaGivesTheIdsOfAllConversations) {
  NEEDS_PCRE2();
  check_conversations(kLlama, "llama3", llama_chat, "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

TEST(Tokenizer, PocketGemmaGivesTheIdsOfTheScript) {
  NEEDS_SENTENCEPIECE();
  const auto tokenizer = Tokenizer::load(kGemma);
  const auto script = nlohmann::json::parse(read_bytes(kGoldens + "gemma3/script.json"));
  std::vector<Message> messages;
  const Ids ids = script["ids"];
  for (const auto& turn : script["turns"]) {
    messages.push_back({"user", turn["user"]});
    messages.push_back({"model", turn["model"]});
    const auto reply = std::span(ids).subspan(turn["reply_starts"], size_t(turn["reply_ends"]) - size_t(turn["reply_starts"]));
    EXPECT_EQ(tokenizer->decode(reply), std::string(turn["model"]) + "<end_of_turn>");
  }
  std::string text = gemma_chat(messages);
  text.pop_back();  // the script ends with the last reply's own token
  EXPECT_EQ(tokenizer->encode(text, Bos::off), ids);
}
