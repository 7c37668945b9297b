// The kernels of recurrent layers, against the contract in plain C++ and against the other tables.
#include <algorithm>
#include <cmath>

#include "tests/support/kernel_testing.hpp"

namespace stet::test::recurrence_tests {
namespace {

class RecurrenceKernels : public EachIsa {};

// Returns element i of an asymmetric pattern of numbers in [-1.1, 1.1], none of them 0.
float value(size_t i, size_t salt) {
  return (static_cast<float>((i * 37 + salt * 11) % 101) - 50.25f) / 47.0f;
}
Fenced<float> values(size_t n, size_t salt, float scale = 1) {
  Fenced<float> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = value(i, salt) * scale;
  return x;
}

// Returns exp of each element, from the portable kernel.
std::vector<float> exponentials(const std::vector<float>& x) {
  std::vector<float> y(x.size());
  kernels_portable.exp(x.data(), y.data(), x.size());
  return y;
}

float softplus_by_contract(float x, float bias) {
  const float z = x + bias;
  const float t = exponentials({-std::fabs(z)})[0];
  const float s = t / (t + 2.0f), square = s * s, twice = s + s;
  float p = 1.0f / 15.0f;
  for (const float n : {13.0f, 11.0f, 9.0f, 7.0f, 5.0f, 3.0f}) p = std::fma(p, square, 1.0f / n);
  return (z > 0 ? z : 0.0f) + std::fma(p * square, twice, twice);
}

TEST_P(RecurrenceKernels, Softplus) {
  const size_t n = 53;
  const Fenced<float> x = values(n, 1, 30), bias = values(n, 2, 3);
  const Fenced<float> y(n);
  k.softplus(x.data(), bias.data(), y.data(), n);
  for (size_t i = 0; i < n; ++i)
    EXPECT_EQ(bits_of(y[i]), bits_of(softplus_by_contract(x[i], bias[i])))
        << x[i] << " " << bias[i];
  EXPECT_TRUE(y.untouched());
}

// Softplus keeps within the documented error, and is exact for special values.
TEST_P(RecurrenceKernels, SoftplusIsAccurate) {
  double worst = 0;
  const float zero = 0;
  for (float x = -100; x < 100; x += 0.00737f) {
    float y;
    k.softplus(&x, &zero, &y, 1);
    const double exact = std::log1p(std::exp(-std::fabs(static_cast<double>(x)))) +
                         std::max(0.0, static_cast<double>(x));
    int exponent;
    std::frexp(std::max(exact, 0x1p-126), &exponent);
    worst =
        std::max(worst, std::fabs(static_cast<double>(y) - exact) / std::ldexp(1.0, exponent - 24));
  }
  EXPECT_LE(worst, 2.9);
  EXPECT_GE(worst, 1.0);
  const std::vector<float> special = {kInf, -kInf, kNan};
  std::vector<float> y(3);
  const std::vector<float> none(3);
  k.softplus(special.data(), none.data(), y.data(), 3);
  EXPECT_EQ(y[0], kInf);
  EXPECT_EQ(y[1], 0);
  EXPECT_TRUE(std::isnan(y[2]));
}

TEST_P(RecurrenceKernels, Elementwise) {
  for (const size_t n : {1, 15, 16, 17, 40}) {
    const Fenced<float> x = values(n, 3, 4), a = values(n, 4, 2), y(n);
    std::vector<float> product(n), negative(n);
    for (size_t i = 0; i < n; ++i) product[i] = x[i] * a[i], negative[i] = 0.0f - x[i];
    const std::vector<float> of_product = exponentials(product),
                             of_negative = exponentials(negative);
    k.multiply(x.data(), a.data(), y.data(), n);
    for (size_t i = 0; i < n; ++i) EXPECT_EQ(bits_of(y[i]), bits_of(product[i]));
    k.exp_of_product(x.data(), a.data(), y.data(), n);
    for (size_t i = 0; i < n; ++i) EXPECT_EQ(bits_of(y[i]), bits_of(of_product[i]));
    k.silu(x.data(), y.data(), n);
    for (size_t i = 0; i < n; ++i)
      EXPECT_EQ(bits_of(y[i]), bits_of(x[i] / (1.0f + of_negative[i])));
    k.sigmoid_mul(x.data(), a.data(), y.data(), n);
    for (size_t i = 0; i < n; ++i)
      EXPECT_EQ(bits_of(y[i]), bits_of(a[i] * (1.0f / (1.0f + of_negative[i]))));
    EXPECT_TRUE(y.untouched());
  }
}

TEST_P(RecurrenceKernels, L2Norm) {
  for (const size_t n : {1, 16, 23, 128}) {
    const Fenced<float> x = values(n, 5), y(n);
    std::vector<float> lanes(kLanes);
    for (size_t i = 0; i < n; ++i) lanes[i % kLanes] = std::fma(x[i], x[i], lanes[i % kLanes]);
    for (size_t half = kLanes / 2; half > 0; half /= 2) {
      for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    const float inverse = 1.0f / std::sqrt(lanes[0] + 1e-6f);
    k.l2_norm(x.data(), 1e-6f, 0.25f, y.data(), n);
    for (size_t i = 0; i < n; ++i) EXPECT_EQ(bits_of(y[i]), bits_of((x[i] * inverse) * 0.25f));
    EXPECT_TRUE(y.untouched());
  }
}

TEST_P(RecurrenceKernels, Convolution) {
  for (const size_t n : {5, 16, 37}) {
    for (const size_t taps : {1, 2, 3, 4, 7}) {
      const size_t ldw = n + 3;
      const Fenced<float> w = values((taps - 1) * ldw + n, 6), bias = values(n, 7), y(n);
      std::vector<Fenced<float>> rows;
      std::vector<const float*> inputs;
      for (size_t t = 0; t < taps; ++t) rows.push_back(values(n, 8 + t));
      for (const Fenced<float>& r : rows) inputs.push_back(r.data());
      for (const bool biased : {false, true}) {
        k.convolve(inputs.data(), w.data(), ldw, biased ? bias.data() : nullptr, taps, y.data(), n);
        for (size_t i = 0; i < n; ++i) {
          float sum = 0;
          for (size_t t = 0; t < taps; ++t) sum = std::fma(w[t * ldw + i], rows[t][i], sum);
          EXPECT_EQ(bits_of(y[i]), bits_of(biased ? sum + bias[i] : sum));
        }
        EXPECT_TRUE(y.untouched());
      }
      // The output may overwrite the last input.
      k.convolve(inputs.data(), w.data(), ldw, bias.data(), taps, rows.back().data(), n);
      for (size_t i = 0; i < n; ++i) EXPECT_EQ(bits_of(rows.back()[i]), bits_of(y[i]));
    }
  }
}

// Inputs of some tokens of one head, whose vectors are parts of wider rows.
struct Tokens {
  Tokens(size_t key, size_t value, size_t count)
      : key_dim(key),
        value_dim(value),
        rows(count),
        stride(2 * key + value + 5),
        inputs(values(rows * stride, 20)),
        factors(values(rows * 2, 21)),
        before(values(key * value, 22, 0.1f)) {
    for (size_t i = 0; i < rows; ++i) {
      factors[2 * i] = 0.5f + 0.4f * value_of(i);
      factors[2 * i + 1] = 0.6f + 0.3f * value_of(i + 7);
    }
  }
  static float value_of(size_t i) { return stet::test::recurrence_tests::value(i, 23); }

  StateTokens tokens(const Fenced<float>& to, const Fenced<float>& out) const {
    StateTokens t = {};
    t.from = before.data();
    t.to = to.data();
    t.key_dim = key_dim, t.value_dim = value_dim, t.rows = rows;
    t.q = inputs.data(), t.k = inputs.data() + key_dim, t.v = inputs.data() + 2 * key_dim;
    t.stride = stride;
    t.decay = factors.data(), t.rate = factors.data() + 1, t.factor_stride = 2;
    t.out = out.data(), t.out_stride = value_dim;
    t.skip = 0.75f;
    return t;
  }

  size_t key_dim, value_dim, rows, stride;
  Fenced<float> inputs, factors, before;
};

// The recurrence as the contract states it.
void by_contract(const StateTokens& t, bool delta, std::vector<float>& state,
                 std::vector<float>& out) {
  for (size_t row = 0; row < t.rows; ++row) {
    const float *q = t.q + row * t.stride, *key = t.k + row * t.stride, *v = t.v + row * t.stride;
    const float decay = t.decay[row * t.factor_stride], rate = t.rate[row * t.factor_stride];
    for (size_t c = 0; c < t.value_dim; ++c) {
      const auto s = [&](size_t i) -> float& { return state[i * t.value_dim + c]; };
      float seen = 0, sum = 0;
      for (size_t i = 0; i < t.key_dim; ++i) s(i) = decay * s(i);
      for (size_t i = 0; i < t.key_dim; ++i) seen = std::fma(key[i], s(i), seen);
      const float u = delta ? rate * (v[c] - seen) : rate * v[c];
      for (size_t i = 0; i < t.key_dim; ++i) s(i) = std::fma(key[i], u, s(i));
      for (size_t i = 0; i < t.key_dim; ++i) sum = std::fma(q[i], s(i), sum);
      out[row * t.value_dim + c] = delta ? sum : std::fma(t.skip, v[c], sum);
    }
  }
}

TEST_P(RecurrenceKernels, StatesFollowTheContract) {
  for (const auto& [key, value] :
       {std::pair<size_t, size_t>{16, 16}, {8, 5}, {3, 33}, {20, 64}, {7, 83}, {128, 128}}) {
    for (const size_t rows : {1, 2, 5}) {
      const Tokens given(key, value, rows);
      for (const bool delta : {true, false}) {
        const Fenced<float> to(key * value), out(rows * value);
        const StateTokens t = given.tokens(to, out);
        std::vector<float> state(given.before.data(), given.before.data() + key * value),
            expected(rows * value);
        by_contract(t, delta, state, expected);
        (delta ? k.delta_rule : k.mamba2)(t);
        for (size_t i = 0; i < state.size(); ++i) ASSERT_EQ(bits_of(to[i]), bits_of(state[i]));
        for (size_t i = 0; i < expected.size(); ++i)
          ASSERT_EQ(bits_of(out[i]), bits_of(expected[i]));
        EXPECT_TRUE(to.untouched());
        EXPECT_TRUE(out.untouched());
      }
    }
  }
}

// Tokens may come in any number of calls, and a state may be updated where it is.
TEST_P(RecurrenceKernels, DividedTokensGiveTheSameState) {
  const Tokens given(24, 80, 7);
  for (const bool delta : {true, false}) {
    const Fenced<float> whole(24 * 80), to(24 * 80), out(7 * 80), part(7 * 80);
    (delta ? k.delta_rule : k.mamba2)(given.tokens(whole, out));
    for (size_t first = 0, rows = 1; first < 7; first += rows, rows = 3) {
      StateTokens t = given.tokens(to, part);
      if (first > 0) t.from = to.data();
      t.rows = rows;
      t.q += first * t.stride, t.k += first * t.stride, t.v += first * t.stride;
      t.decay += first * 2, t.rate += first * 2, t.out += first * 80;
      (delta ? k.delta_rule : k.mamba2)(t);
    }
    for (size_t i = 0; i < 24 * 80; ++i) ASSERT_EQ(bits_of(to[i]), bits_of(whole[i]));
    for (size_t i = 0; i < 7 * 80; ++i) ASSERT_EQ(bits_of(part[i]), bits_of(out[i]));
  }
}

INSTANTIATE_TEST_SUITE_P(All, RecurrenceKernels, testing::ValuesIn(isa_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace stet::test::recurrence_tests
