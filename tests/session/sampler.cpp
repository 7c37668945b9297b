#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "stet/base/error.hpp"
#include "stet/checkpoint/safetensors.hpp"
#include "stet/files/file.hpp"
#include "stet/kernels/math.hpp"
#include "stet/sampling/philox.hpp"
#include "stet/sampling/sampler.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/files.hpp"
#include "tests/support/heap.hpp"
#include "xxhash.h"

namespace stet::test::sampler_tests {
namespace {

using stet::Sampler;
using stet::SamplingSettings;
using Floats = std::vector<float>;
using Ids = std::vector<int32_t>;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

SamplingSettings random_settings() {
  SamplingSettings s;
  s.greedy = false;
  return s;
}

Floats probabilities(const SamplingSettings& s, const Floats& logits, const Ids& previous = {},
                     const Ids& drawn = {}) {
  Floats out(logits.size(), kNan);
  Sampler(static_cast<int>(logits.size())).probabilities(s, logits, previous, out, drawn);
  return out;
}

int32_t sample(const SamplingSettings& s, const Floats& logits, const Ids& previous = {},
               uint64_t position = 0) {
  return Sampler(static_cast<int>(logits.size())).sample(s, logits, previous, position);
}

Ids kept(const Floats& p) {
  Ids ids;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] > 0) ids.push_back(static_cast<int32_t>(i));
  }
  return ids;
}

// Returns the text of the argument Error that a call throws.
template <class Call>
std::string refusal(const Call& call) {
  return error_of(call, stet::ErrorKind::argument);
}

// Returns logits distributed like a real model's: sums of twelve uniforms, close to normal, times
// `scale`.
Floats noise(size_t n, double scale, uint64_t seed) {
  Floats x(n);
  for (size_t i = 0; i < n; ++i) {
    double sum = -6;
    for (uint64_t j = 0; j < 12; ++j) sum += stet::philox_uniform(seed, i * 12 + j);
    x[i] = static_cast<float>(sum * scale);
  }
  return x;
}

template <typename T>
std::vector<T> values_of(const stet::SafeTensors& file, const std::string& name) {
  const stet::TensorView* view = file.find(name);
  if (view == nullptr) throw std::runtime_error("no tensor " + name);
  std::vector<T> values(view->bytes.size() / sizeof(T));
  std::memcpy(values.data(), view->bytes.data(), view->bytes.size());
  return values;
}

// Reference values of transformers 5.17 for each of its processors, alone and combined.
TEST(Sampler, GivesTheProbabilitiesOfTransformers) {
  const std::string directory = STET_ROOT "/tests/data/models/sampling/";
  const std::vector<std::byte> bytes = stet::read_file(directory + "golden.safetensors", 1 << 20);
  const auto golden = stet::SafeTensors::parse(bytes, "golden.safetensors");
  const auto list = nlohmann::json::parse(read_text(directory + "settings.json"));
  const Floats scores = values_of<float>(golden, "scores");
  const Ids previous = values_of<int32_t>(golden, "previous_ids");
  const size_t rows = 6, vocab = 300, history = 30;
  ASSERT_EQ(scores.size(), rows * vocab);
  ASSERT_EQ(previous.size(), rows * history);
  ASSERT_EQ(list.size(), 13u);
  double worst = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    SamplingSettings s = random_settings();
    s.temperature = list[i].value("temperature", 1.0);
    s.top_k = list[i].value("top_k", 0);
    s.top_p = list[i].value("top_p", 1.0);
    s.min_p = list[i].value("min_p", 0.0);
    s.typical_p = list[i].value("typical_p", 1.0);
    s.repetition_penalty = list[i].value("repetition_penalty", 1.0);
    const Floats want = values_of<float>(golden, "probs." + std::to_string(i));
    ASSERT_EQ(want.size(), rows * vocab);
    for (size_t r = 0; r < rows; ++r) {
      const Floats got =
          probabilities(s, Floats(&scores[r * vocab], &scores[r * vocab] + vocab),
                        Ids(&previous[r * history], &previous[r * history] + history));
      for (size_t v = 0; v < vocab; ++v) {
        const float w = want[r * vocab + v];
        EXPECT_EQ(got[v] == 0, w == 0)
            << "settings " << i << " row " << r << " id " << v << " want " << w;
        worst = std::max(worst, std::fabs(static_cast<double>(got[v]) - w));
      }
    }
  }
  EXPECT_LT(worst, 1e-6);
}

TEST(Sampler, GreedyTakesTheBestAndOfEqualsTheLowestId) {
  SamplingSettings s;
  EXPECT_EQ(sample(s, {1, 3, 2, 3}), 1);
  EXPECT_EQ(sample(s, {-0.0f, 0.0f}), 0);
  EXPECT_EQ(sample(s, {-kInf, -5, -kInf}), 1);
  EXPECT_EQ(sample(s, Floats(5000, 2.5f)), 0);
  Floats late(262144, -1);
  late[262143] = -0.5f;
  EXPECT_EQ(sample(s, late), 262143);
  EXPECT_EQ(probabilities(s, {1, 3, 2, 3}), (Floats{0, 1, 0, 0}));
  s.temperature = 1e6;  // has no effect
  s.top_k = 1;
  EXPECT_EQ(sample(s, {1, 3, 2, 3}), 1);
}

TEST(Sampler, PenaltyAppliesOnceToEachPreviousId) {
  SamplingSettings s;
  s.repetition_penalty = 2;
  EXPECT_EQ(sample(s, {4, 3, 1}, {0}), 1);           // 2, 3, 1
  EXPECT_EQ(sample(s, {4, 1.5f, 1}, {0, 0, 0}), 0);  // 2, once
  EXPECT_EQ(sample(s, {-1, -1.5f}, {0}), 1);         // -2, -1.5
  s.greedy = false;
  const Floats p = probabilities(s, {4, -1, 0}, {1, 0, 1});  // 2, -2, 0
  EXPECT_FLOAT_EQ(p[0] / p[2], static_cast<float>(std::exp(2.0)));
  EXPECT_FLOAT_EQ(p[1] / p[2], static_cast<float>(std::exp(-2.0)));
  EXPECT_EQ(probabilities(s, {1, -kInf, 1}, {1}), (Floats{0.5f, 0, 0.5f}));
  s.repetition_penalty = 0.5;  // favours repetition
  EXPECT_EQ(probabilities(s, {1, 2, 2}, {0})[0], 1.0f / 3);
  s.repetition_penalty = 1e30;  // -1e30 * 1e30 saturates instead of becoming -inf
  EXPECT_EQ(probabilities(s, {-1e30f, -1e30f}, {0, 1}), (Floats{0.5f, 0.5f}));
}

// Applies the header's formulas one token at a time.
Floats weighed(const SamplingSettings& s, Floats logits, const Ids& previous, const Ids& drawn) {
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    float& x = logits[i];
    if (x == -kInf) continue;
    for (const auto& b : s.logit_bias) {
      if (b.id == id) x = static_cast<float>(static_cast<double>(x) + b.bias);
    }
    const auto penalty = static_cast<float>(s.repetition_penalty);
    if (std::ranges::count(previous, id) > 0) x = x < 0 ? x * penalty : x / penalty;
    const auto count = static_cast<double>(std::ranges::count(drawn, id));
    const double less = count * s.frequency_penalty + s.presence_penalty;
    if (count > 0) x = static_cast<float>(static_cast<double>(x) - less);
  }
  return logits;
}

TEST(Sampler, PenaltiesAndBiasesAreThoseOfAPlainReference) {
  constexpr size_t kVocab = 300;
  for (uint64_t round = 0; round < 40; ++round) {
    uint64_t at = 0;
    const auto draw = [&](double low, double high) {
      return low + (high - low) * stet::philox_uniform(round + 100, at++);
    };
    SamplingSettings s = random_settings();
    s.temperature = draw(0.3, 2);
    s.top_k = static_cast<int>(draw(0, 80));
    s.top_p = draw(0.5, 1);
    s.greedy = round % 5 == 0;
    SamplingSettings plain = s;
    if (round % 2 == 0) s.repetition_penalty = draw(0.5, 2);
    if (round % 3 != 0) s.frequency_penalty = draw(-2, 2);
    if (round % 7 != 0) s.presence_penalty = draw(-2, 2);
    std::vector<stet::TokenBias> biases;
    for (int32_t i = 0; i < static_cast<int32_t>(round); ++i)
      biases.push_back({(i * 37 + 11) % 300, draw(-100, 100)});
    s.logit_bias = stet::logit_bias_of(biases);
    Floats logits = noise(kVocab, 3, round);
    logits[round] = -kInf;
    Ids previous, drawn;
    for (int i = 0; i < 60; ++i) previous.push_back(static_cast<int32_t>(draw(0, kVocab)));
    drawn.assign(previous.begin() + 20, previous.end());
    for (int i = 0; i < 30; ++i) drawn.push_back(drawn[static_cast<size_t>(i) / 3]);
    EXPECT_EQ(probabilities(s, logits, previous, drawn),
              probabilities(plain, weighed(s, logits, previous, drawn)))
        << round;
  }
}

TEST(Sampler, DrawnTokensCountEachTimeAndPresenceOnce) {
  SamplingSettings s;
  s.frequency_penalty = 0.5;
  EXPECT_EQ(sample(s, {4, 3, 1}, {0, 0, 0}), 0);  // previous tokens do not count
  Sampler sampler(3);
  const Floats logits = {4, 3.25f, 1};
  EXPECT_EQ(sampler.sample(s, logits, {}, 0, Ids{0}), 0);     // 3.5
  EXPECT_EQ(sampler.sample(s, logits, {}, 0, Ids{0, 0}), 1);  // 3
  EXPECT_EQ(sampler.sample(s, logits, {}, 0, Ids{0}), 0);     // the count is back to one
  s.frequency_penalty = 0;
  s.presence_penalty = 0.5;
  EXPECT_EQ(sampler.sample(s, logits, {}, 0, Ids(9, 0)), 0);
  s.presence_penalty = -2;  // favours tokens that are present
  EXPECT_EQ(sampler.sample(s, logits, {}, 0, Ids{1}), 1);
}

// The bias comes first, so the repetition penalty divides or multiplies the biased logit. The
// temperature comes last.
TEST(Sampler, BiasThenRepetitionThenPresenceThenTemperature) {
  SamplingSettings s = random_settings();
  s.temperature = 2;
  s.repetition_penalty = 2;
  s.presence_penalty = 1;
  s.logit_bias = {{0, 3}, {1, -3}};
  // ((1 + 3) / 2 - 1) / 2, ((1 - 3) * 2 - 1) / 2, 0
  const Floats p = probabilities(s, {1, 1, 0}, {0, 1}, {0, 1});
  EXPECT_FLOAT_EQ(p[0] / p[2], static_cast<float>(std::exp(0.5)));
  EXPECT_FLOAT_EQ(p[1] / p[2], static_cast<float>(std::exp(-2.5)));
  EXPECT_EQ(probabilities(s, {-kInf, 1e38f, 0}, {}, {1}), (Floats{0, 1, 0}));
}

TEST(Sampler, BiasesHaveOneForm) {
  using stet::logit_bias_of;
  const std::vector<stet::TokenBias> none, some = {{2, -1}, {7, 0.5}};
  EXPECT_EQ(logit_bias_of({}), none);
  EXPECT_EQ(logit_bias_of({{5, 0}, {2, -0.0}}), none);
  EXPECT_EQ(logit_bias_of({{7, 0.5}, {5, 0}, {2, -1}}), some);
  EXPECT_EQ(refusal([] {
              logit_bias_of({{5, 1}, {3, 1}, {5, 0}});
            }),
            "logit_bias[5]: expected each token once, found a second bias");
  SamplingSettings s;
  EXPECT_FALSE(s.weighs_tokens());
  s.frequency_penalty = -0.0;
  EXPECT_FALSE(s.weighs_tokens());
  EXPECT_EQ(s, SamplingSettings());
}

TEST(Sampler, TopKKeepsAllTokensThatTieWithTheLast) {
  SamplingSettings s = random_settings();
  const Floats logits = {1, 3, 2, 2, 0, 2};
  s.top_k = 1;
  EXPECT_EQ(kept(probabilities(s, logits)), (Ids{1}));
  s.top_k = 2;
  EXPECT_EQ(kept(probabilities(s, logits)), (Ids{1, 2, 3, 5}));
  s.top_k = 5;
  EXPECT_EQ(kept(probabilities(s, logits)), (Ids{0, 1, 2, 3, 5}));
  for (const int k : {0, 6, 7, std::numeric_limits<int>::max()}) {
    s.top_k = k;
    EXPECT_EQ(kept(probabilities(s, logits)).size(), 6u);
  }
  s.top_k = 3;
  EXPECT_EQ(kept(probabilities(s, Floats(5000, 1))).size(), 5000u);
  EXPECT_EQ(kept(probabilities(s, {-0.0f, 0.0f, -1, 0.0f})), (Ids{0, 1, 3}));
}

// Compares with a full sort, for sizes around the search's groups and with many ties.
TEST(Sampler, TopKEqualsSorting) {
  for (const size_t vocab : {1, 2, 63, 2047, 2048, 2049, 5000, 20000}) {
    Floats logits = noise(vocab, 3, vocab);
    for (float& x : logits) x = std::round(x * 64) / 64;
    Floats sorted = logits;
    std::sort(sorted.rbegin(), sorted.rend());
    for (const size_t k : {1, 2, 40, 2047, 2048, 4999}) {
      if (k > vocab) continue;
      SamplingSettings s = random_settings();
      s.top_k = static_cast<int>(k);
      Ids want;
      for (size_t i = 0; i < vocab; ++i) {
        if (logits[i] >= sorted[k - 1]) want.push_back(static_cast<int32_t>(i));
      }
      EXPECT_EQ(kept(probabilities(s, logits)), want) << vocab << " " << k;
    }
  }
}

TEST(Sampler, TopPDropsTheLowestAndOfEqualsTheLowerIds) {
  SamplingSettings s = random_settings();
  const Floats equal(8, 0);
  s.top_p = 0.25;  // exactly: tokens are dropped while the sum is at most 0.75
  EXPECT_EQ(kept(probabilities(s, equal)), (Ids{6, 7}));
  s.top_p = 0.26;
  EXPECT_EQ(kept(probabilities(s, equal)), (Ids{5, 6, 7}));
  for (const double tiny : {0.0, 1e-300, 1e-17, 1e-7}) {
    s.top_p = tiny;
    EXPECT_EQ(kept(probabilities(s, equal)), (Ids{7}));
    EXPECT_EQ(kept(probabilities(s, {5, 9, 2, 9, 1})), (Ids{3}));
    EXPECT_EQ(kept(probabilities(s, {5, 9, -kInf})), (Ids{1}));
    EXPECT_EQ(kept(probabilities(s, Floats(262144, 3))), (Ids{262143}));
  }
  s.top_p = 1 - 1e-12;  // e^-35 is dropped, e^-25 stays
  EXPECT_EQ(kept(probabilities(s, {0, -30, -20, 5})), (Ids{0, 2, 3}));
}

// Compares with sorting by (score, id) and summing from the bottom in long double.
TEST(Sampler, TopPEqualsSorting) {
  int compared = 0;
  for (const size_t vocab : {1, 2, 300, 5000, 20000}) {
    for (const double scale : {0.0, 0.01, 1.0, 4.0, 30.0}) {
      Floats logits = noise(vocab, scale, vocab + 1);
      for (float& x : logits) x = std::round(x * 16) / 16 + 0.0f;
      const long double best = *std::max_element(logits.begin(), logits.end());
      Ids order(vocab);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int a, int b) { return logits[a] < logits[b]; });
      long double total = 0;
      for (const float x : logits) total += std::exp(x - best);
      for (const double p : {0.07, 0.5, 0.9, 0.95, 0.999}) {
        long double sum = 0;
        bool undecided = false;  // rounding decides
        Ids want;
        for (size_t i = 0; i < vocab; ++i) {
          sum += std::exp(logits[order[i]] - best);
          undecided |= std::fabs(sum / total - (1.0L - p)) < 1e-12L;
          if (sum > (1.0L - p) * total || i + 1 == vocab) want.push_back(order[i]);
        }
        if (undecided) continue;
        ++compared;
        std::sort(want.begin(), want.end());
        SamplingSettings s = random_settings();
        s.top_p = p;
        ASSERT_EQ(kept(probabilities(s, logits)), want) << vocab << " " << scale << " " << p;
      }
    }
  }
  EXPECT_GT(compared, 90);
}

// Implements the header's definition without regard to speed: sorts everything and computes every
// exponential. Returns nothing if rounding decides what top-p drops.
Ids kept_by_sorting(const SamplingSettings& s, const Floats& scores,
                    const std::vector<double>& weights) {
  Ids order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return scores[a] < scores[b]; });
  const size_t k = static_cast<size_t>(s.top_k);
  if (k > 0 && k < order.size()) {
    const float kth = scores[order[order.size() - k]];
    std::erase_if(order, [&](int id) { return scores[id] < kth; });
  }
  if (s.top_p < 1) {
    long double total = 0, sum = 0;
    for (const int id : order) total += weights[id];
    Ids rest;
    for (const int id : order) {
      sum += weights[id];
      if (std::fabs(sum / total - (1.0L - s.top_p)) < 1e-12L) return {};
      if (sum > (1.0L - s.top_p) * total || id == order.back()) rest.push_back(id);
    }
    order = rest;
  }
  std::erase_if(order, [&](int id) { return weights[id] < s.min_p; });
  std::sort(order.begin(), order.end());
  return order;
}

// Compares every probability's bits and every token for vocabularies up to 262,144: noise with and
// without ties, tokens at -inf, equal logits, a single outlier.
TEST(Sampler, EqualsSortingEverything) {
  int compared = 0;
  for (const size_t vocab : {1, 3, 2048, 2049, 6000, 262144}) {
    for (const int kind : {0, 1, 2, 3, 4}) {
      Floats logits = noise(vocab, kind == 3 ? 0 : 3, vocab + 7);
      if (kind == 1)
        for (float& x : logits) x = std::round(x * 4) / 4 + 0.0f;
      if (kind == 2)
        for (size_t i = 0; i + 1 < vocab; i += i % 3 + 1) logits[i] = -kInf;
      if (kind == 4) logits[vocab / 2] = 40;
      const float best = *std::max_element(logits.begin(), logits.end());
      std::vector<double> weights;
      for (const float x : logits)
        weights.push_back(stet::math::exp(static_cast<double>(x) - static_cast<double>(best)));
      Sampler sampler(static_cast<int>(vocab));
      for (const int top_k : {0, 1, 64, 2048, 5000}) {
        for (const double top_p : {1.0, 0.95, 0.3}) {
          for (const double min_p : {0.0, 0.05, 1.0, 1e-300}) {
            if (vocab == 262144 && (top_k == 2048 || top_p == 0.3))
              continue;  // slow, and shows nothing more
            SamplingSettings s = random_settings();
            s.top_k = top_k;
            s.top_p = top_p;
            s.min_p = min_p;
            const Ids want = kept_by_sorting(s, logits, weights);
            if (want.empty()) continue;
            ++compared;
            double total = 0;
            for (const int id : want) total += weights[id];
            Floats expected(vocab), got(vocab);
            for (const int id : want) expected[id] = static_cast<float>(weights[id] / total);
            sampler.probabilities(s, logits, {}, got);
            ASSERT_EQ(std::memcmp(got.data(), expected.data(), vocab * sizeof(float)), 0)
                << vocab << " kind " << kind << " top_k " << top_k << " top_p " << top_p
                << " min_p " << min_p;
            for (uint64_t position = 0; position < 3; ++position) {
              const double target = stet::philox_uniform(s.seed, position) * total;
              size_t i = 0;
              for (double sum = weights[want[0]]; sum <= target; sum += weights[want[i]]) ++i;
              ASSERT_EQ(sampler.sample(s, logits, {}, position), want[i]);
            }
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 1400);
}

TEST(Sampler, MinPIsRelativeToTheBest) {
  SamplingSettings s = random_settings();
  s.min_p = 1;
  EXPECT_EQ(kept(probabilities(s, {2, 1, 2, 1.999f})), (Ids{0, 2}));
  s.min_p = 0.5;
  EXPECT_EQ(kept(probabilities(s, {0, -0.69f, -0.7f, -kInf})), (Ids{0, 1}));
}

TEST(Sampler, TypicalKeepsTheTokensNearestToTheEntropy) {
  SamplingSettings s = random_settings();
  s.typical_p = 0.2;
  EXPECT_EQ(kept(probabilities(s, Floats(10, 1))).size(), 10u);  // all are equally typical
  // 0.5, 0.25, 0.125, 0.125: entropy 1.75 bits, distances 0.75, 0.25, 1.25, 1.25
  const float bit = std::log(2.0f);
  const Floats logits = {3 * bit, 2 * bit, bit, bit, -kInf};
  EXPECT_EQ(kept(probabilities(s, logits)), (Ids{1}));
  s.typical_p = 0.3;
  EXPECT_EQ(kept(probabilities(s, logits)), (Ids{0, 1}));
  s.typical_p = 0.8;
  EXPECT_EQ(kept(probabilities(s, logits)), (Ids{0, 1, 2, 3}));
  s.typical_p = 1 - 1e-16;
  EXPECT_EQ(kept(probabilities(s, logits)), (Ids{0, 1, 2, 3}));
  s.typical_p = 1e-300;
  EXPECT_EQ(kept(probabilities(s, {0, -kInf})), (Ids{0}));
}

TEST(Sampler, TemperatureExtremes) {
  SamplingSettings s = random_settings();
  s.temperature = 1e-6;
  EXPECT_EQ(probabilities(s, {1, 1.001f, -3, -kInf}), (Floats{0, 1, 0, 0}));
  EXPECT_EQ(probabilities(s, {2, 2, 1}), (Floats{0.5f, 0.5f, 0}));
  s.temperature = 1e6;
  const Floats flat = probabilities(s, {10, -10, 0, -kInf});
  EXPECT_EQ(flat[3], 0);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(flat[i], 1.0 / 3, 1e-5);
  s.temperature = 1e-30;  // saturates but stays a distribution
  EXPECT_EQ(probabilities(s, {3e38f, -3e38f, 1}), (Floats{1, 0, 0}));
  EXPECT_EQ(probabilities(s, {-3e38f, -3e38f}), (Floats{0.5f, 0.5f}));
  s.temperature = 1e30;
  EXPECT_EQ(probabilities(s, {1, -1}), (Floats{0.5f, 0.5f}));
}

TEST(Sampler, OneTokenIsCertain) {
  SamplingSettings s = random_settings();
  s.top_p = 0.5;
  s.typical_p = 0.5;
  s.min_p = 0.5;
  s.top_k = 3;
  EXPECT_EQ(probabilities(s, {-7}), (Floats{1}));
  for (uint64_t position = 0; position < 100; ++position)
    EXPECT_EQ(sample(s, {-7}, {0}, position), 0);
}

TEST(Sampler, RefusesLogitsThatAreNoDistribution) {
  for (const bool greedy : {true, false}) {
    SamplingSettings s;
    s.greedy = greedy;
    EXPECT_EQ(refusal([&] {
                sample(s, {0, kNan, 1});
              }),
              "logits[1]: expected a finite number or -inf, found nan");
    EXPECT_EQ(refusal([&] { sample(s, {0, 1, -kNan}); }).substr(0, 9), "logits[2]");
    EXPECT_EQ(refusal([&] {
                sample(s, {kInf, 1});
              }),
              "logits[0]: expected a finite number or -inf, found inf");
    EXPECT_EQ(refusal([&] {
                sample(s, {-kInf, -kInf});
              }),
              "logits: expected at least one finite value, found -inf alone");
    EXPECT_EQ(refusal([&] {
                Sampler(3).sample(s, Floats{1, 2}, {}, 0);
              }),
              "logits: expected 3 values, found 2");
    EXPECT_EQ(refusal([&] {
                sample(s, {1, 2}, {0, 2});
              }),
              "previous_ids: expected ids in 0..1, found 2");
    EXPECT_EQ(refusal([&] {
                sample(s, {1, 2}, {-1});
              }),
              "previous_ids: expected ids in 0..1, found -1");
    Floats out(1);
    EXPECT_EQ(refusal([&] {
                Sampler(2).probabilities(s, Floats{1, 2}, {}, out);
              }),
              "out: expected 2 values, found 1");
  }
  EXPECT_EQ(refusal([] { Sampler(0); }),
            "vocab_size: expected a positive integer up to 1048576, found 0");
  EXPECT_EQ(refusal([] { Sampler{std::numeric_limits<int>::max()}; }),
            "vocab_size: expected a positive integer up to 1048576, found 2147483647");
}

TEST(Sampler, RefusesSettingsOutOfRange) {
  const double nan = kNan, inf = kInf;
  const auto message = [](auto change) {
    SamplingSettings s;
    change(s);
    const std::string error = refusal([&] { s.validate("generation_config.json"); });
    EXPECT_EQ(refusal([&] { sample(s, {1, 2}); }), error.substr(error.find(": ") + 2));
    return error;
  };
  EXPECT_EQ(refusal([] { SamplingSettings().validate(""); }), "no error");
  EXPECT_EQ(message([&](auto& s) { s.temperature = nan; }),
            "generation_config.json: temperature: expected a number in [1e-30, 1e30], found nan");
  EXPECT_EQ(message([&](auto& s) { s.temperature = 0; }),
            "generation_config.json: temperature: expected a number in [1e-30, 1e30], found 0");
  EXPECT_EQ(message([&](auto& s) { s.temperature = inf; }),
            "generation_config.json: temperature: expected a number in [1e-30, 1e30], found inf");
  EXPECT_EQ(message([&](auto& s) { s.top_k = -1; }),
            "generation_config.json: top_k: expected 0 (off) or a positive integer, found -1");
  EXPECT_EQ(message([&](auto& s) { s.top_p = 1.5; }),
            "generation_config.json: top_p: expected a number in [0, 1], found 1.5");
  EXPECT_EQ(message([&](auto& s) { s.top_p = nan; }),
            "generation_config.json: top_p: expected a number in [0, 1], found nan");
  EXPECT_EQ(message([&](auto& s) { s.min_p = -0.1; }),
            "generation_config.json: min_p: expected a number in [0, 1], found -0.1");
  EXPECT_EQ(message([&](auto& s) { s.min_p = nan; }),
            "generation_config.json: min_p: expected a number in [0, 1], found nan");
  EXPECT_EQ(message([&](auto& s) { s.typical_p = 0; }),
            "generation_config.json: typical_p: expected a number in (0, 1], found 0");
  EXPECT_EQ(message([&](auto& s) { s.typical_p = nan; }),
            "generation_config.json: typical_p: expected a number in (0, 1], found nan");
  EXPECT_EQ(
      message([&](auto& s) { s.repetition_penalty = -1; }),
      "generation_config.json: repetition_penalty: expected a number in [1e-30, 1e30], found -1");
  EXPECT_EQ(
      message([&](auto& s) { s.repetition_penalty = nan; }),
      "generation_config.json: repetition_penalty: expected a number in [1e-30, 1e30], found nan");
  EXPECT_EQ(message([&](auto& s) { s.frequency_penalty = 2.5; }),
            "generation_config.json: frequency_penalty: expected a number in [-2, 2], found 2.5");
  EXPECT_EQ(message([&](auto& s) { s.presence_penalty = nan; }),
            "generation_config.json: presence_penalty: expected a number in [-2, 2], found nan");
  EXPECT_EQ(message([&](auto& s) {
              s.logit_bias = {{3, 101}};
            }),
            "generation_config.json: logit_bias[3]: expected a number in [-100, 100] other than 0, "
            "found 101");
  EXPECT_EQ(message([&](auto& s) {
              s.logit_bias = {{3, 0}};
            }),
            "generation_config.json: logit_bias[3]: expected a number in [-100, 100] other than 0, "
            "found 0");
  for (const int32_t second : {-1, 3, 2}) {
    EXPECT_EQ(message([&](auto& s) {
                s.logit_bias = {{3, 1}, {second, 1}};
              }),
              "generation_config.json: logit_bias[" + std::to_string(second) +
                  "]: expected ids from 0 on, ascending, found " + std::to_string(second));
  }
  EXPECT_EQ(message([&](auto& s) {
              for (int32_t i = 0; i <= 4096; ++i) s.logit_bias.push_back({i, 1});
            }),
            "generation_config.json: logit_bias: expected at most 4096 tokens, found 4097");
  SamplingSettings biased;
  biased.logit_bias = {{1, 1}, {3, 1}};
  EXPECT_EQ(refusal([&] {
              sample(biased, {1, 2, 3});
            }),
            "logit_bias: expected ids in 0..2, found 3");
  EXPECT_EQ(refusal([&] {
              Sampler(2).sample({}, Floats{1, 2}, {}, 0, Ids{2});
            }),
            "drawn_ids: expected ids in 0..1, found 2");
}

// The header defines the draw: the first token in id order whose cumulative probability exceeds u.
TEST(Sampler, DrawsByInversionInTheOrderOfIds) {
  SamplingSettings s = random_settings();
  s.seed = 99;
  const Floats logits(4, 1.5f);  // weights 1, total 4: exact
  for (uint64_t position = 0; position < 1000; ++position) {
    const double u = stet::philox_uniform(99, position);
    EXPECT_EQ(sample(s, logits, {}, position), static_cast<int32_t>(u * 4));
  }
}

TEST(Sampler, ATokenDependsOnItsPositionAndNotOnTheDrawsBefore) {
  SamplingSettings s = random_settings();
  s.seed = 5;
  const Floats logits = noise(3000, 2, 1);
  Sampler forwards(3000), backwards(3000);
  Ids a(50), b(50);
  for (size_t i = 0; i < 50; ++i) a[i] = forwards.sample(s, logits, {}, i);
  for (size_t i = 50; i-- > 0;) b[i] = backwards.sample(s, logits, {}, i);
  EXPECT_EQ(a, b);
  s.seed = 6;
  for (size_t i = 0; i < 50; ++i) b[i] = forwards.sample(s, logits, {}, i);
  EXPECT_NE(a, b);
}

// Pearson's statistic X of n draws is close to chi-square with d = bins - 1 degrees of freedom. By
// Laurent and Massart (2000), lemma 1, P(X >= d + 2 sqrt(d t) + 2 t) <= e^-t. t = 14 means one in a
// million.
void expect_drawn_as_stated(const SamplingSettings& s, const Floats& logits, int draws) {
  Sampler sampler(static_cast<int>(logits.size()));
  Floats p(logits.size());
  sampler.probabilities(s, logits, {}, p);
  std::vector<int> seen(logits.size());
  for (int i = 0; i < draws; ++i) ++seen[sampler.sample(s, logits, {}, static_cast<uint64_t>(i))];
  double x = 0, rare_expected = 0, rare_seen = 0;
  int bins = 0;
  const auto add = [&](double expected, double got) {
    if (expected == 0) return;
    x += (got - expected) * (got - expected) / expected;
    ++bins;
  };
  for (size_t i = 0; i < p.size(); ++i) {
    const double expected = static_cast<double>(p[i]) * draws;
    if (p[i] == 0) {
      EXPECT_EQ(seen[i], 0) << i;
    } else if (expected < 10) {
      rare_expected += expected;
      rare_seen += seen[i];
    } else {
      add(expected, seen[i]);
    }
  }
  add(rare_expected, rare_seen);
  ASSERT_GT(bins, 4);
  const double d = bins - 1, t = 14;
  EXPECT_LT(x, d + 2 * std::sqrt(d * t) + 2 * t);
  EXPECT_GT(x, d - 2 * std::sqrt(d * t));  // the lemma's other side: too uniform to be random
}

TEST(Sampler, DrawsFollowTheProbabilities) {
  const Floats logits = noise(200, 1.5, 3);
  SamplingSettings s = random_settings();
  s.seed = 2024;
  expect_drawn_as_stated(s, logits, 200000);
  s.temperature = 0.7;
  s.top_k = 50;
  s.top_p = 0.95;
  s.seed = 0xFFFFFFFF00000001;
  expect_drawn_as_stated(s, logits, 50000);
  s = random_settings();
  s.typical_p = 0.6;
  s.min_p = 0.01;
  expect_drawn_as_stated(s, logits, 50000);
}

// Every compiler and architecture must draw these tokens.
TEST(Sampler, BitsAreTheSameEverywhere) {
  const Floats logits = noise(20000, 3, 8);
  SamplingSettings s = random_settings();
  s.seed = 1;
  Sampler sampler(20000);
  const Ids previous = {10436, 3, 15446, 3};
  const auto drawn = [&] {
    Ids ids;
    for (uint64_t i = 0; i < 6; ++i) ids.push_back(sampler.sample(s, logits, previous, 1000 + i));
    return ids;
  };
  EXPECT_EQ(drawn(), (Ids{10566, 15557, 17480, 1876, 15705, 5670}));
  s.top_p = 0.9;
  s.repetition_penalty = 1.1;
  EXPECT_EQ(drawn(), (Ids{10352, 15534, 17548, 1929, 15672, 5580}));
  s.typical_p = 0.5;
  s.temperature = 0.8;
  EXPECT_EQ(drawn(), (Ids{10169, 14893, 16998, 2841, 15172, 5687}));
  std::vector<unsigned char> bytes;
  for (const float p : probabilities(s, logits, previous)) {
    const uint32_t bits = std::bit_cast<uint32_t>(p);
    for (int i = 0; i < 32; i += 8) bytes.push_back(static_cast<unsigned char>(bits >> i));
  }
  EXPECT_EQ(XXH64(bytes.data(), bytes.size(), 0), 8031336739387545872u);
  s.frequency_penalty = 0.7;
  s.presence_penalty = 0.3;
  s.logit_bias = {{3, -50.5}, {10169, -1.1}, {17000, 2.3}};
  const Ids reply = {10169, 3, 10169, 15446, 14893};
  const auto drawn_again = [&] {
    Ids ids;
    for (uint64_t i = 0; i < 6; ++i)
      ids.push_back(sampler.sample(s, logits, previous, 1000 + i, reply));
    return ids;
  };
  EXPECT_EQ(drawn_again(), (Ids{10069, 14280, 16982, 2841, 14442, 5678}));
}

TEST(Sampler, AllocatesNothingPerToken) {
  const Floats logits = noise(10000, 3, 4);
  const Ids previous = {1, 2, 3};
  SamplingSettings s = random_settings();
  s.top_k = 500;
  s.top_p = 0.9;
  s.min_p = 0.001;
  s.typical_p = 0.9;
  s.repetition_penalty = 1.2;
  SamplingSettings weighs = s;
  weighs.presence_penalty = 0.5;
  weighs.logit_bias = {{2, 1}, {9999, -1}};
  Sampler sampler(10000);
#ifdef STET_OPERATOR_NEW_IS_TAKEN
  GTEST_SKIP() << "operator new is the sanitizer's";
#endif
  const int64_t before = heap::allocations;
  sampler.sample(s, logits, previous, 1);
  s.top_k = 0;
  sampler.sample(s, logits, previous, 2);
  s.greedy = true;
  sampler.sample(s, logits, previous, 3);
  sampler.sample(weighs, logits, previous, 4, previous);
  EXPECT_EQ(heap::allocations, before);
}

}  // namespace
}  // namespace stet::test::sampler_tests
