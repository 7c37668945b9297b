// Routers: which experts are chosen, and their weights, against the contract in plain C++.
#include "stet/kernels/router.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "stet/kernels/kernels.hpp"
#include "tests/support/kernel_testing.hpp"

namespace stet::test::router_tests {
namespace {

struct Routed {
  bool sound = false;
  std::vector<float> weights, chosen;

  bool operator==(const Routed&) const = default;
};

Routed routed(const Kernels& k, RouterSettings s, const std::vector<float>& logits) {
  Routed r;
  s.experts = logits.size();
  r.weights.assign(s.experts, -1);
  r.chosen.assign(s.chosen, -1);
  r.sound = route(k, s, logits.data(), r.weights.data(), r.chosen.data());
  return r;
}

template <class F>
void on_all(F f) {
  for (const char* const* name = kernel_names(); *name != nullptr; ++name) {
    SCOPED_TRACE(*name);
    f(*find_kernels(*name));
  }
}

std::vector<float> some_logits(size_t n) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>((i * 37) % 29) * 0.37f - 4;
  return x;
}

TEST(Router, EqualScoresGoToTheLowerExpert) {
  on_all([](const Kernels& k) {
    const std::vector<float> logits = {1, 3, 2, 3, 2, 3, -0.0f, 0.0f};
    const Routed two = routed(k, {RouterRule::softmax, 0, 2}, logits);
    EXPECT_EQ(two.chosen, (std::vector<float>{1, 3}));
    EXPECT_EQ(two.weights[5], 0);
    EXPECT_EQ(routed(k, {RouterRule::softmax_divided, 0, 4}, logits).chosen,
              (std::vector<float>{1, 3, 5, 2}));
    EXPECT_EQ(routed(k, {RouterRule::softmax_of_chosen, 0, 7}, logits).chosen,
              (std::vector<float>{1, 3, 5, 2, 4, 0, 6}));  // -0 is not below 0
    const std::vector<float> same(9, 0.25f);
    EXPECT_EQ(routed(k, {RouterRule::sigmoid, 0, 3}, same).chosen, (std::vector<float>{0, 1, 2}));
  });
}

// Different logits are ranked even if their probabilities are both zero.
TEST(Router, ChoosesByLogits) {
  on_all([](const Kernels& k) {
    const Routed r = routed(k, {RouterRule::softmax, 0, 2}, {-300, 0, -200, -250});
    EXPECT_EQ(r.chosen, (std::vector<float>{1, 2}));
    EXPECT_EQ(r.weights, (std::vector<float>{0, 1, 0, 0}));
  });
}

// Compares the weights of each rule with float64. The divided rule must also sum and divide in the
// documented order.
TEST(Router, WeightsFollowTheRule) {
  on_all([](const Kernels& k) {
    const std::vector<float> logits = some_logits(21);
    std::vector<double> soft(logits.size());
    double total = 0;
    for (const float x : logits) total += std::exp(static_cast<double>(x));
    for (size_t i = 0; i < soft.size(); ++i)
      soft[i] = std::exp(static_cast<double>(logits[i])) / total;
    const Routed plain = routed(k, {RouterRule::softmax, 0, 5}, logits),
                 divided = routed(k, {RouterRule::softmax_divided, 0, 5}, logits),
                 chosen = routed(k, {RouterRule::softmax_of_chosen, 0, 5}, logits),
                 sigmoid = routed(k, {RouterRule::sigmoid, 0, 5}, logits),
                 sigmoid_divided = routed(k, {RouterRule::sigmoid_divided, 0, 5}, logits);
    double sum = 0, sigmoids = 0;
    float in_order = 0;
    for (size_t i = 0; i < soft.size(); ++i) {
      if (plain.weights[i] == 0) continue;
      sum += soft[i];
      in_order += plain.weights[i];
      sigmoids += 1 / (1 + std::exp(-static_cast<double>(logits[i])));
    }
    for (size_t i = 0; i < soft.size(); ++i) {
      const bool is = std::ranges::find(plain.chosen, static_cast<float>(i)) != plain.chosen.end();
      const double s = 1 / (1 + std::exp(-static_cast<double>(logits[i])));
      EXPECT_NEAR(plain.weights[i], is ? soft[i] : 0, 1e-6);
      EXPECT_EQ(divided.weights[i], plain.weights[i] / in_order);
      EXPECT_NEAR(chosen.weights[i], is ? soft[i] / sum : 0, 1e-6);
      EXPECT_NEAR(sigmoid.weights[i], is ? s : 0, 1e-6);
      EXPECT_NEAR(sigmoid_divided.weights[i], is ? s / (sigmoids + 1e-6) : 0, 1e-6);
    }
  });
}

TEST(Router, ABiasChoosesAndDoesNotWeigh) {
  on_all([](const Kernels& k) {
    const std::vector<float> logits = {2, 1, 0, -1}, bias = {0, 0, 5, 0}, scale = {1, 2, 4, 8};
    RouterSettings s = {RouterRule::sigmoid, 0, 2};
    s.bias = bias.data();
    const Routed r = routed(k, s, logits);
    EXPECT_EQ(r.chosen, (std::vector<float>{2, 0}));
    EXPECT_EQ(r.weights[2], 0.5f);
    s.scale = scale.data();
    EXPECT_EQ(routed(k, s, logits).weights[2], 2.0f);
    EXPECT_EQ(routed(k, s, logits).weights[0], r.weights[0]);
  });
}

// Biases that make scores equal leave the choice to the lower expert, whatever the weights.
TEST(Router, EqualScoresWithABiasGoToTheLowerExpert) {
  on_all([](const Kernels& k) {
    const std::vector<float> logits = {0, 100, 0, -200, 0}, bias = {0.5f, 0, 0.5f, 1, 0.25f};
    RouterSettings s = {RouterRule::sigmoid_divided, 0, 3};
    s.bias = bias.data();
    const Routed r = routed(k, s, logits);  // scores 1, 1, 1, 1, 0.75
    EXPECT_EQ(r.chosen, (std::vector<float>{0, 1, 2}));
    const float sum = ((0.5f + 1.0f) + 0.5f) + 1e-6f;
    EXPECT_EQ(r.weights, (std::vector<float>{0.5f / sum, 1.0f / sum, 0.5f / sum, 0, 0}));
  });
}

// The factor multiplies a weight once: after the division, and after the factors of single experts.
TEST(Router, AFactorMultipliesWeights) {
  on_all([](const Kernels& k) {
    const std::vector<float> logits = some_logits(21), scale(21, 3);
    for (const RouterRule rule : {RouterRule::sigmoid, RouterRule::sigmoid_divided}) {
      RouterSettings s = {rule, 0, 4};
      const Routed plain = routed(k, s, logits);
      s.factor = 1.7f;
      const Routed all = routed(k, s, logits);
      s.scale = scale.data();
      const Routed each = routed(k, s, logits);
      EXPECT_EQ(all.chosen, plain.chosen);
      for (size_t i = 0; i < logits.size(); ++i) {
        EXPECT_EQ(all.weights[i], plain.weights[i] * 1.7f);
        EXPECT_EQ(each.weights[i], plain.weights[i] * 3 * 1.7f);
      }
    }
  });
}

TEST(Router, EveryInstructionSetHasTheSameBits) {
  for (const size_t n : {1, 2, 15, 16, 17, 60, 128, 1000}) {
    const std::vector<float> logits = some_logits(n);
    for (const RouterRule rule :
         {RouterRule::softmax, RouterRule::softmax_divided, RouterRule::softmax_of_chosen,
          RouterRule::sigmoid, RouterRule::sigmoid_divided}) {
      const RouterSettings s = {rule, 0, std::max<size_t>(1, n / 3)};
      const Routed expected = routed(kernels_portable, s, logits);
      on_all([&](const Kernels& k) { EXPECT_EQ(routed(k, s, logits), expected) << n; });
    }
  }
}

TEST(Router, ALogitThatIsNotFiniteIsToldAndChoosesNothing) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    const Routed r =
        routed(best_kernels(), {RouterRule::softmax_divided, 0, 2}, {1, bad, 3, bad, 5});
    EXPECT_FALSE(r.sound);
    EXPECT_EQ(r.weights, std::vector<float>(5, 0));
    EXPECT_EQ(r.chosen, (std::vector<float>{0, 1}));
  }
}

// Compares the kernels that only mixtures of experts use, element by element, in memory that ends
// at a guard page.
TEST(Router, KernelsAreThoseOfTheContract) {
  on_all([](const Kernels& k) {
    for (const size_t n : {1, 15, 16, 17, 33}) {
      const Fenced<float> x(some_logits(n)), y(some_logits(n)), z(n);
      for (size_t i = 0; i < n; ++i) y[i] = -2 * x[i] + 0.3f;
      const std::vector<float> before(y.data(), y.data() + n);
      k.weighted_add(y.data(), x.data(), 0.7f, n);
      for (size_t i = 0; i < n; ++i) EXPECT_EQ(y[i], std::fma(0.7f, x[i], before[i]));
      k.sigmoid(x.data(), z.data(), n);
      for (size_t i = 0; i < n; ++i) {
        const float negative = -x[i];
        float e = 0;
        k.exp(&negative, &e, 1);
        EXPECT_EQ(z[i], 1.0f / (1.0f + e));
      }
      y[0] = kNan;
      k.clamp(y.data(), 1.5f, n);
      EXPECT_TRUE(std::isnan(y[0]));
      for (size_t i = 1; i < n; ++i)
        EXPECT_EQ(y[i], std::clamp(std::fma(0.7f, x[i], before[i]), -1.5f, 1.5f));
      // The contract sums in sixteen lanes, then adds these in a tree.
      std::vector<float> lanes(16, 0.0f), e(n);
      const float largest = *std::max_element(x.data(), x.data() + n);
      for (size_t i = 0; i < n; ++i) {
        const float shifted = x[i] - largest;
        k.exp(&shifted, &e[i], 1);
        lanes[i % 16] += e[i];
      }
      for (size_t half = 8; half > 0; half /= 2)
        for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
      k.softmax(x.data(), n);
      for (size_t i = 0; i < n; ++i) EXPECT_EQ(x[i], e[i] / lanes[0]);
      EXPECT_TRUE(x.untouched() && y.untouched() && z.untouched());
    }
  });
}

TEST(Router, GroupsRowsByExpert) {
  const std::vector<float> weights = {0, 0.5f, 0, -0.25f, 9,  // the fifth column is padding
                                      0, 0,    0, 1,      9,  //
                                      0, 2,    0, 0,      9};
  std::vector<uint32_t> experts(4, 99), first(5, 99), rows(12, 99);
  std::vector<float> slots(12, 99);
  const size_t active = group_by_expert(weights.data(), 5, 3, 4,
                                        {experts.data(), first.data(), rows.data(), slots.data()});
  EXPECT_EQ(active, 2u);
  EXPECT_EQ((std::vector<uint32_t>(experts.begin(), experts.begin() + 2)),
            (std::vector<uint32_t>{1, 3}));
  EXPECT_EQ((std::vector<uint32_t>(first.begin(), first.begin() + 3)),
            (std::vector<uint32_t>{0, 2, 4}));
  EXPECT_EQ((std::vector<uint32_t>(rows.begin(), rows.begin() + 4)),
            (std::vector<uint32_t>{0, 2, 0, 1}));
  EXPECT_EQ((std::vector<float>(slots.begin(), slots.begin() + 4)),
            (std::vector<float>{0.5f, 2, -0.25f, 1}));
}

}  // namespace
}  // namespace stet::test::router_tests
