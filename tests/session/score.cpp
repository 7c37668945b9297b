// Scores are the log-probabilities from append()'s logits, whatever other requests run, and those
// of the float64 reference.
#include "stet/generate/score.hpp"

#include <algorithm>
#include <cmath>

#include "stet/sampling/sampler.hpp"
#include "tests/support/models.hpp"
#include "tests/support/reference_model.hpp"

namespace stet::test::score_tests {
namespace {

std::vector<int32_t> joined(std::vector<int32_t> a, std::span<const int32_t> b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Returns the result of a request, computed from all logits of a separate session.
Score alone(const Session& before, const ScoreRequest& r) {
  Session s = before.fork();
  Score score;
  if (r.ids.empty()) return score;
  const auto vocab = static_cast<size_t>(s.model().config().vocab_size);
  std::vector<float> logits(s.logits().begin(), s.logits().end());
  logits.resize(vocab);
  const std::vector<float> rest = all_logits(s, r.ids);
  logits.insert(logits.end(), rest.begin(), rest.end());
  for (size_t i = r.begin; i < r.ids.size(); ++i) {
    const std::span<const float> row = std::span(logits).subspan(i * vocab, vocab);
    score.tokens.push_back({r.ids[i], argmax(row), log_probability(row, r.ids[i])});
    score.sum += score.tokens.back().log_probability;
    score.greedy = score.greedy && r.ids[i] == argmax(row);
  }
  return score;
}

class Scores : public testing::TestWithParam<Subject> {
 protected:
  std::shared_ptr<const Model> m = model(GetParam().directory, GetParam().contract);
  std::vector<int32_t> text(size_t n, uint32_t seed) const { return random_tokens(*m, n, seed); }

  // Returns requests like a harness's, and requests with all kinds of shared prefixes.
  std::vector<ScoreRequest> requests(const Session& before) const {
    const std::vector<int32_t> few_shot = text(50, 1), other = text(33, 2);
    std::vector<ScoreRequest> all;
    for (uint32_t question = 0; question < 3; ++question) {
      const std::vector<int32_t> context = joined(few_shot, text(20 + question, 3 + question));
      for (uint32_t choice = 0; choice < 3; ++choice)
        all.push_back({joined(context, text(1 + choice, 20 + choice)), context.size()});
    }
    all.push_back({few_shot, 1});                 // scored from token 1 on; others begin with it
    all.push_back({joined(few_shot, other), 1});  // extends the shared prefix
    all.push_back({other, 30});
    all.push_back(all.back());       // a duplicate
    all.push_back({text(1, 9), 1});  // scores nothing
    all.push_back({text(5, 9), 5});
    all.push_back({{}, 0});
    all.push_back({text(2, 10), 1});
    if (before.size() == 0) return all;
    all.push_back({text(1, 11), 0});
    all.push_back({text(9, 11), 0});
    return all;
  }
};

TEST_P(Scores, AreThoseOfEachAlone) {
  for (const size_t size : {size_t{0}, size_t{21}}) {
    Session before(m, options(1, STET_DEFAULT_ISA, 512, GetParam().contract));
    before.append(text(size, 50));
    const std::vector<ScoreRequest> all = requests(before);
    std::vector<Score> expected;
    for (const ScoreRequest& r : all) expected.push_back(alone(before, r));
    for (const size_t batch : {1, 3, 100}) {
      before.set_compute(
          options(batch == 1 ? 1 : 2, STET_DEFAULT_ISA, batch == 3 ? 7 : 512, GetParam().contract)
              .compute);
      std::vector<Score> told(all.size());
      const auto done = [&](size_t i, const Score& score) { told[i] = score; };
      const std::vector<Score> found = score(before, all, {batch, done});
      for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_TRUE(found[i] == expected[i]) << "request " << i << ", batch " << batch;
        EXPECT_TRUE(told[i] == found[i]);
      }
    }
    EXPECT_EQ(before.size(), static_cast<int64_t>(size));
  }
}

INSTANTIATE_TEST_SUITE_P(Subjects, Scores,
                         testing::Values(Subject{"gemma3", data_path("models/gemma3-tiny")},
                                         Subject{"llama31", data_path("models/llama31-tiny")},
                                         Subject{"gpt2_q8", data_path("models/gpt2-tiny"),
                                                 Contract::q8}),
                         subject_name);

TEST(Score, EqualsTheReference) {
  const std::string directory = data_path("models/gemma3-tiny");
  const auto m = model(directory);
  const std::vector<int32_t> ids = random_tokens(*m, 60, 4);
  const std::vector<double> logits = ReferenceModel(directory).run(ids).logits;
  const auto vocab = static_cast<size_t>(m->config().vocab_size);
  const Score found = score(Session(m), std::vector<ScoreRequest>{{ids, 1}})[0];
  ASSERT_EQ(found.tokens.size(), ids.size() - 1);
  for (size_t i = 1; i < ids.size(); ++i) {
    const auto row = logits.begin() + static_cast<std::ptrdiff_t>((i - 1) * vocab);
    double sum = 0;
    for (size_t k = 0; k < vocab; ++k) sum += std::exp(row[static_cast<std::ptrdiff_t>(k)]);
    EXPECT_NEAR(found.tokens[i - 1].log_probability, row[ids[i]] - std::log(sum), 2e-4) << i;
  }
}

// Interventions still in force, and edits, affect scores of the tokens after them.
TEST(Score, DependsOnThePrecedingState) {
  const auto m = model(data_path("models/gemma3-tiny"));
  Session before(m);
  before.append(random_tokens(*m, 40));
  Intervention w;
  w.point = Point::ln_final;
  w.op = Intervention::Op::scale;
  w.amount = 0.5f;
  before.attach(w);
  before.zero_kv({{2}, {}, 3, 9, true, true});
  const std::vector<ScoreRequest> all = {{random_tokens(*m, 50, 2), 0},
                                         {random_tokens(*m, 50, 3), 9}};
  const std::vector<Score> found = score(before, all);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(found[i] == alone(before, all[i])) << i;
}

// Contexts are processed first if the scored part is small.
TEST(Score, IsEqualAfterLongContexts) {
  const auto m = model(data_path("models/gemma3-tiny"));
  const Session before(m);
  std::vector<ScoreRequest> all;
  for (uint32_t i = 0; i < 16; ++i) all.push_back({random_tokens(*m, 50 + i, 60 + i), 44 + i});
  all.push_back({random_tokens(*m, 40, 90), 40});
  const std::vector<Score> found = score(before, all);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(found[i] == alone(before, all[i])) << i;
}

TEST(Score, ItsCallbackMayNotChangeTheSession) {
  const auto m = model(data_path("models/gemma3-tiny"));
  const std::vector<int32_t> ids = random_tokens(*m, 9);
  Session before(m);
  before.append(ids);
  std::string error, other;
  const auto change = [&](size_t, const Score&) {
    error = error_of([&] { before.append(ids); });
    other = error_of([&] { before.set_compute(options(2).compute); });
    before.fork().append(ids);
  };
  score(before, std::vector<ScoreRequest>{{ids, 0}}, {16, change});
  EXPECT_EQ(error,
            "argument: append: expected a call after score() has returned, found a call from its "
            "callback");
  EXPECT_TRUE(other.starts_with("argument: set_compute: ")) << other;
  EXPECT_EQ(before.size(), 9);
  before.append(ids);
}

TEST(Score, RefusesBeforeItComputes) {
  const auto m = model(data_path("models/gemma3-tiny"));
  SessionOptions small;
  small.capacity = 64;
  Session before(m, small);
  before.append(random_tokens(*m, 10));
  const auto error = [&](const ScoreRequest& r, size_t batch = 16) {
    return message_of([&] {
      score(before, std::vector<ScoreRequest>{{{1, 2}, 1}, r},
            {batch, [](size_t, const Score&) { ADD_FAILURE() << "computed"; }});
    });
  };
  EXPECT_EQ(error({random_tokens(*m, 56), 1}),
            "requests[1]: ids: expected at most 55 tokens, found 56");
  EXPECT_EQ(error({{1, -1}, 1}), "requests[1]: ids[1]: expected a token id in 0..319, found -1");
  EXPECT_EQ(error({{1, 2}, 3}), "requests[1]: begin: expected at most the 2 ids, found 3");
  EXPECT_EQ(error({{1, 2}, 1}, 0), "batch: expected at least 1, found 0");
  const Score fits = score(before, std::vector<ScoreRequest>{{random_tokens(*m, 55), 54}})[0];
  EXPECT_EQ(fits.tokens.size(), 1u);
}

}  // namespace
}  // namespace stet::test::score_tests
