// Replies: where they stop, and that cutting and resuming them changes nothing.
#include <algorithm>

#include "stet/base/error.hpp"
#include "stet/generate/generate.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "tests/support/models.hpp"

namespace stet::test::generate_tests {
namespace {

struct Pocket {
  std::string name, prompt;
};

const Pocket kGemma = {"pocket-gemma3",
                       "<start_of_turn>user\nSet g = 12.<end_of_turn>\n<start_of_turn>model\n"};
const Pocket kLlama = {"pocket-llama3",
                       "<|start_header_id|>user<|end_header_id|>\n\nSet g = "
                       "12.<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"};

bool can_read(const Pocket& pocket) {
#ifndef STET_HAVE_SENTENCEPIECE
  if (pocket.name == "pocket-gemma3") return false;
#endif
  return !pocket.name.empty();
}

class Generate : public testing::TestWithParam<Pocket> {
 protected:
  void SetUp() override {
    if (!can_read(GetParam())) GTEST_SKIP() << "built without the library for its tokenizer";
    tokenizer = Tokenizer::load(asset_path(GetParam().name));
    m = model(asset_path(GetParam().name));
  }
  // Returns a session after the prompt, with the checkpoint's settings.
  Session asked(int64_t capacity = 256) const {
    SessionOptions o = options(1);
    o.capacity = capacity;
    Session s(m, o);
    s.generation() = default_generation(*m);
    append_prompt(s, tokenizer->encode(GetParam().prompt));
    return s;
  }
  Reply reply(Session& s, int64_t n, bool ignore_eos = false,
              const TextSink& sink = nullptr) const {
    return generate(s, tokenizer.get(), {n, ignore_eos}, sink);
  }
  Session through_file(Session& s) const {
    Snapshot::save(s, scratch / "s.stet", {.tokenizer = tokenizer.get()});
    return Snapshot::open(scratch / "s.stet")
        .restore(m, {.session = options(1), .tokenizer = tokenizer.get()});
  }
  void expect_same(Session& a, Session& b, const std::string& what) const {
    EXPECT_EQ(a.tokens(), b.tokens()) << what;
    EXPECT_TRUE(same_bytes(a.logits(), b.logits())) << what;
    EXPECT_EQ(kv_bytes(a.kv()), kv_bytes(b.kv())) << what;
    EXPECT_EQ(a.generation(), b.generation()) << what;
    EXPECT_EQ(digests_of(a).state, digests_of(b).state) << what;
  }
  // Cuts a reply of n tokens at every position. Returns the number of cuts that held back text.
  int expect_cuts_do_not_matter(const SamplingSettings& sampling, int64_t n,
                                const std::vector<std::string>& stops) const {
    Session whole = asked();
    whole.generation().sampling = sampling;
    whole.generation().stop_strings = stops;
    Session before = whole.fork();
    const Reply unbroken = reply(whole, n, true);
    const std::string end = end_of(whole);
    int waiting = 0;
    for (int64_t cut = 0; cut <= static_cast<int64_t>(unbroken.ids.size()); ++cut) {
      Session s = before.fork();
      Reply first = reply(s, cut, true);
      Session t = cut % 2 == 0 ? through_file(s) : s.fork();
      waiting += end_of(s).empty() ? 0 : 1;
      const Reply second =
          first.stop == StopReason::length ? reply(t, n - cut, true) : Reply{{}, "", first.stop};
      first.ids.insert(first.ids.end(), second.ids.begin(), second.ids.end());
      EXPECT_EQ(first.ids, unbroken.ids) << cut;
      EXPECT_EQ(first.text + second.text, unbroken.text) << cut;
      EXPECT_EQ(end_of(t), end) << cut;
      EXPECT_EQ(second.stop, unbroken.stop) << cut;
      expect_same(t, whole, "cut " + std::to_string(cut));
    }
    if (unbroken.stop == StopReason::length) {
      EXPECT_EQ(unbroken.text + end, tokenizer->decode(unbroken.ids, true));
    }
    return waiting;
  }
  std::string end_of(const Session& s) const {
    Session copy = s.fork();
    return end_reply(copy, tokenizer.get());
  }

  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const Model> m;
  TemporaryDirectory scratch;
};

SamplingSettings sampled(double temperature, int top_k, double top_p, double penalty,
                         uint64_t seed) {
  SamplingSettings s;
  s.greedy = false;
  s.temperature = temperature;
  s.top_k = top_k;
  s.top_p = top_p;
  s.repetition_penalty = penalty;
  s.seed = seed;
  return s;
}

TEST_P(Generate, StopsAtAStopTokenWhichIsNoText) {
  Session s = asked();
  const Reply r = reply(s, 64);
  EXPECT_EQ(r.text, "OK, g = 12.");
  EXPECT_EQ(r.stop, StopReason::eos);
  const std::vector<int32_t>& stops = s.generation().stop_ids;
  EXPECT_NE(std::find(stops.begin(), stops.end(), r.ids.back()), stops.end());
  EXPECT_EQ(s.tokens().back(), r.ids.back());
  ASSERT_EQ(s.generation().turns.size(), 1u);
  const Turn expected = {0, s.size() - static_cast<int64_t>(r.ids.size()), s.size(), false};
  EXPECT_EQ(s.generation().turns[0], expected);
}

TEST_P(Generate, IgnoresStopTokensWhenAsked) {
  Session s = asked(), t = asked();
  const Reply stopped = reply(s, 64), r = reply(t, 30, true);
  EXPECT_EQ(r.stop, StopReason::length);
  ASSERT_EQ(r.ids.size(), 30u);
  EXPECT_TRUE(std::equal(stopped.ids.begin(), stopped.ids.end(), r.ids.begin()));
  EXPECT_TRUE(t.generation().turns.back().open);
}

TEST_P(Generate, StopsAtGivenTokens) {
  Session s = asked(), t = asked();
  const Reply whole = reply(s, 64);
  t.generation().stop_ids = {whole.ids[2]};
  const Reply r = reply(t, 64);
  EXPECT_EQ(r.ids, std::vector<int32_t>(whole.ids.begin(), whole.ids.begin() + 3));
  EXPECT_EQ(r.stop, StopReason::eos);
  EXPECT_EQ(r.text, tokenizer->decode(std::span(whole.ids).first(2), true));
}

TEST_P(Generate, StopsAtAStringThatSpansTokens) {
  Session s = asked();
  s.generation().stop_strings = {"= 13", "g = 1"};
  std::string streamed;
  const Reply r =
      reply(s, 64, false, [&](std::string_view text) { return streamed += text, true; });
  EXPECT_EQ(r.text, "OK, ");
  EXPECT_EQ(streamed, r.text);
  EXPECT_EQ(r.stop, StopReason::stop_string);
  EXPECT_FALSE(s.generation().turns.back().open);
  EXPECT_EQ(s.generation().held, "");
}

TEST_P(Generate, HeldTextComesWhenTheReplyEnds) {
  Session s = asked();
  s.generation().stop_strings = {"12.!"};
  EXPECT_EQ(reply(s, 64).text, "OK, g = 12.");
}

TEST_P(Generate, AnOpenReplyHoldsBackPartOfAStopString) {
  Session s = asked(), t = asked();
  s.generation().stop_strings = {"= 12"};
  const Reply whole = reply(t, 64);
  const Reply first = reply(s, static_cast<int64_t>(whole.ids.size()) - 4);  // "OK, g = "
  EXPECT_EQ(first.text, "OK, g ");
  EXPECT_EQ(first.stop, StopReason::length);
  EXPECT_EQ(s.generation().held, "= ");
  Session resumed = through_file(s);
  EXPECT_EQ(resumed.generation(), s.generation());
  const Reply second = reply(resumed, 64);
  EXPECT_EQ(second.text, "");
  EXPECT_EQ(second.stop, StopReason::stop_string);

  // With other stop strings the held-back text may be shown after all ...
  Session other = s.fork();
  other.generation().stop_strings = {"never"};
  EXPECT_EQ(reply(other, 64).text, "= 12.");
  other = s.fork();  // ... or may already end with the stop string.
  other.generation().stop_strings = {" "};
  const Reply at_once = reply(other, 64);
  EXPECT_EQ(at_once.text, "=");
  EXPECT_EQ(at_once.stop, StopReason::stop_string);
  EXPECT_TRUE(at_once.ids.empty());

  EXPECT_EQ(end_reply(s, tokenizer.get()), "= ");
  EXPECT_FALSE(s.generation().turns.back().open);
}

TEST_P(Generate, LengthAndCapacity) {
  Session s = asked();
  const auto before = digests_of(s).state;
  const Reply none = reply(s, 0);
  EXPECT_EQ(none.stop, StopReason::length);
  EXPECT_TRUE(none.ids.empty());
  EXPECT_EQ(digests_of(s).state, before);  // nothing was drawn or changed
  EXPECT_EQ(reply(s, 3).ids.size(), 3u);

  Session full = asked(s.size());
  const Reply r = reply(full, 64);
  EXPECT_EQ(r.ids.size(), 3u);
  EXPECT_EQ(r.stop, StopReason::length);
  EXPECT_EQ(full.size(), full.capacity());
  EXPECT_TRUE(reply(full, 64).ids.empty());
  EXPECT_TRUE(full.generation().turns.back().open);
  expect_same(full, s, "a full session");
}

TEST_P(Generate, TheSinkIsAskedAfterEveryTokenAndCanEndTheReply) {
  Session s = asked(), t = asked();
  int calls = 0;
  const Reply r = reply(s, 64, true, [&](std::string_view) { return ++calls < 5; });
  EXPECT_EQ(calls, 5);
  EXPECT_EQ(r.ids.size(), 5u);
  EXPECT_EQ(r.stop, StopReason::interrupted);
  EXPECT_TRUE(s.generation().turns.back().open);
  const Reply same = reply(t, 5, true);
  EXPECT_EQ(same.text, r.text);
  expect_same(s, t, "interrupted");
  calls = 0;  // tokens without text count, too
  EXPECT_EQ(
      generate(s, nullptr, {64, true}, [&](std::string_view) { return ++calls < 5; }).ids.size(),
      5u);
}

TEST_P(Generate, ACutSampledReplyGoesOnAsIfItHadNotBeenCut) {
  expect_cuts_do_not_matter(sampled(1.2, 40, 0.95, 1.1, 0xDEADBEEF12345678), 24, {});
}

SamplingSettings weighing(SamplingSettings s) {
  s.frequency_penalty = 0.75;
  s.presence_penalty = 0.25;
  s.logit_bias = {{11, 2.5}, {40, -100}};
  return s;
}

TEST_P(Generate, ACutReplyWithPenaltiesGoesOnAsIfItHadNotBeenCut) {
  expect_cuts_do_not_matter(weighing(sampled(1.2, 40, 0.95, 1.1, 77)), 24, {});
  expect_cuts_do_not_matter(weighing({}), 24, {});
}

// The sampler's penalties count the tokens of the current reply only, not the prompt or earlier
// replies.
TEST_P(Generate, PenaltiesCountTheTokensOfTheReplyAlone) {
  Session s = asked();
  s.generation().sampling = weighing(sampled(1.5, 0, 1, 1, 3));
  Sampler sampler(static_cast<int>(m->config().vocab_size));
  for (int turn = 0; turn < 2; ++turn) {
    std::vector<int32_t> drawn;
    for (int i = 0; i < 30; ++i) {
      const int32_t expected = sampler.sample(s.generation().sampling, s.logits(), s.tokens(),
                                              static_cast<uint64_t>(s.size()), drawn);
      ASSERT_EQ(reply(s, 1, true).ids, std::vector<int32_t>{expected}) << turn << ", " << i;
      drawn.push_back(expected);
    }
    EXPECT_TRUE(std::ranges::equal(s.generation().reply_of(s.tokens()), drawn));
    append_prompt(s, std::vector<int32_t>(drawn.begin(), drawn.begin() + 5));
    EXPECT_TRUE(s.generation().reply_of(s.tokens()).empty());
  }
}

TEST_P(Generate, ARewoundReplyWithPenaltiesIsDrawnAgain) {
  Session s = asked();
  s.generation().sampling = weighing(sampled(1.5, 0, 1, 1, 3));
  const Reply r = reply(s, 30, true);
  Session whole = s.fork();
  s.rewind(s.size() - 17);
  Session resumed = through_file(s);
  const Reply again = reply(resumed, 17, true);
  EXPECT_EQ(again.ids, std::vector<int32_t>(r.ids.begin() + 13, r.ids.end()));
  EXPECT_EQ(digests_of(resumed).id, digests_of(whole).id);
}

TEST_P(Generate, ACutInTheMiddleOfACharacterDoesNotMatter) {
  // At nearly uniform sampling many tokens are bytes of incomplete characters.
  EXPECT_GT(expect_cuts_do_not_matter(sampled(1000, 0, 1, 1, 11), 40, {}), 0);
}

TEST_P(Generate, ACutInTheMiddleOfAStopStringDoesNotMatter) {
  const SamplingSettings greedy;
  EXPECT_GT(expect_cuts_do_not_matter(greedy, 12, {"g = 12"}), 0);
  EXPECT_GT(expect_cuts_do_not_matter(greedy, 12, {"g = 13", "= 12, "}), 0);
}

TEST_P(Generate, RefusesImpossibleRequestsBeforeDrawing) {
  const auto refused = [&](auto change, const Tokenizer* with) {
    Session s = asked();
    change(s.generation());
    const int64_t size = s.size();
    const std::string error = error_of([&] { generate(s, with, {}); });
    EXPECT_EQ(s.size(), size);
    return error;
  };
  const std::string last = std::to_string(m->config().vocab_size - 1),
                    over = std::to_string(m->config().vocab_size);
  EXPECT_EQ(
      refused([](GenerationState& g) { g.sampling.temperature = std::nan(""); }, tokenizer.get()),
      "argument: temperature: expected a number in [1e-30, 1e30], found nan");
  EXPECT_EQ(refused(
                [&](GenerationState& g) {
                  g.stop_ids.push_back(static_cast<int32_t>(m->config().vocab_size));
                },
                tokenizer.get()),
            "argument: stop_ids[2]: expected a token id in 0.." + last + ", found " + over);
  EXPECT_EQ(
      refused(
          [&](GenerationState& g) {
            g.sampling.logit_bias = {{1, 1}, {static_cast<int32_t>(m->config().vocab_size), 1}};
          },
          tokenizer.get()),
      "argument: logit_bias: expected a token id in 0.." + last + ", found " + over);
  EXPECT_EQ(refused(
                [](GenerationState& g) {
                  g.stop_strings = {"a", ""};
                },
                tokenizer.get()),
            "argument: stop[1]: expected 1 to 65536 bytes, found 0");
  EXPECT_EQ(refused([](GenerationState& g) { g.stop_strings = {"\xff"}; }, tokenizer.get()),
            "argument: stop[0]: expected UTF-8, found \\xff");
  EXPECT_EQ(refused([](GenerationState& g) { g.stop_strings = {"a"}; }, nullptr),
            "argument: stop strings: expected a tokenizer to match them in text, found none");
  Session empty(m, options(1));
  EXPECT_EQ(error_of([&] { generate(empty, tokenizer.get(), {}); }),
            "argument: prompt: expected at least one token, found none");
}

TEST_P(Generate, ARewoundReplyIsDrawnAgain) {
  Session s = asked();
  const Reply r = reply(s, 64);
  Session once = s.fork();
  append_prompt(s, tokenizer->encode(GetParam().prompt));
  s.rewind(once.size());
  expect_same(s, once, "the second turn dropped");
  const int64_t to = s.generation().turns[0].reply + 2;
  s.rewind(to);
  const Turn expected = {0, to - 2, to, true};
  ASSERT_EQ(s.generation().turns.size(), 1u);
  EXPECT_EQ(s.generation().turns[0], expected);
  Session resumed = through_file(s);
  const Reply again = reply(resumed, 64);
  EXPECT_EQ(again.ids, std::vector<int32_t>(r.ids.begin() + 2, r.ids.end()));
  EXPECT_EQ(resumed.tokens(), once.tokens());
}

INSTANTIATE_TEST_SUITE_P(Pocket, Generate, testing::Values(kGemma, kLlama),
                         [](const auto& info) { return info.param.name.substr(7); });

}  // namespace
}  // namespace stet::test::generate_tests
