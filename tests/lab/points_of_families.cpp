// Points of each family, and what changes at them do to the logits, beside a float64 reference.
#include <algorithm>
#include <cmath>

#include "tests/lab/captured_points.hpp"
#include "tests/support/models.hpp"
#include "tests/support/reference_model.hpp"

namespace stet::test::points_of_families_tests {
namespace {

void expect_close(const std::vector<float>& got, const std::vector<double>& expected,
                  const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  double squares = 0, worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(got[i])) continue;  // the score of an invisible position
    squares += expected[i] * expected[i];
    worst = std::max(worst, std::abs(got[i] - expected[i]));
  }
  EXPECT_LE(worst, 1e-4 * std::max(1.0, std::sqrt(squares / static_cast<double>(got.size()))))
      << what;
}

class PointsOfFamily : public testing::TestWithParam<const char*> {
 protected:
  // Returns logits, [T][vocab].
  std::vector<double> reference(const ReferenceModel::Hook& hook) const {
    if (m->config().family == "gpt2") return Gpt2Reference(directory).run(ids, hook);
    return ReferenceModel(directory).run(ids, hook).logits;
  }
  const std::string directory = data_path(std::string("models/") + GetParam());
  const std::shared_ptr<const Model> m = model(directory);
  const std::vector<int32_t> ids = random_tokens(*m, 70);
};

TEST_P(PointsOfFamily, PointsAreThoseOfTheReference) {
  std::map<std::string, std::vector<double>> expected;
  reference([&](const std::string& point, size_t, auto& x) {
    expected[point].insert(expected[point].end(), x.begin(), x.end());
  });
  Session s(m, options(2, STET_DEFAULT_ISA, 32));
  const Captured found = capture(s, ids);
  EXPECT_EQ(found.size(), expected.size());
  for (const auto& [name, rows] : found) {
    ASSERT_TRUE(expected.contains(name)) << name;
    expect_close(rows, expected[name], name);
  }
}

// Compares each operation with the same change made in the reference. Each test changes one point
// in one layer or, with STET_ALL_WAYS, in all layers.
TEST_P(PointsOfFamily, ChangesAreThoseOfTheReference) {
  const ModelConfig& c = m->config();
  const auto direction = [](size_t n) {
    std::vector<float> v(n);
    for (size_t i = 0; i < n; ++i) v[i] = 0.1f * static_cast<float>(static_cast<int>(i % 7) - 3);
    return v;
  };
  size_t count = 0;
  for (const PointAt& at : points_of(c)) {
    if (!point_info(at.point).changes) continue;
    if (!all_ways() && point_info(at.point).of_layer &&
        static_cast<int64_t>(at.point) % c.layers != at.layer)
      continue;
    const auto width = static_cast<size_t>(point_width(c, at, 0));
    using Op = Intervention::Op;
    const Op op = std::vector{Op::set, Op::add, Op::scale, Op::project_out, Op::clamp}[count++ % 5];
    Intervention w;
    w.point = at.point;
    if (point_info(at.point).of_layer) w.layers = {at.layer};
    w.begin = 20, w.end = 30;
    w.op = op;
    w.amount = op == Op::clamp ? 1.5f : -0.75f;
    std::vector<float> v = direction(op == Op::clamp ? 2 * width : width);
    if (op != Op::scale) w.values = std::make_shared<const std::vector<float>>(v);
    Session s(m, options(2));
    s.attach(w);
    s.append(ids);
    const auto by_hand = [&](const std::string& point, size_t t, ReferenceModel::Vec& x) {
      if (point != point_name(at) || t < 20 || t >= 30) return;
      double dot = 0, square = 0;
      for (size_t i = 0; i < width; ++i) dot += x[i] * v[i], square += double{v[i]} * v[i];
      for (size_t i = 0; i < width; ++i) {
        if (op == Op::set) x[i] = v[i];
        if (op == Op::add) x[i] += w.amount * v[i];
        if (op == Op::scale) x[i] *= w.amount;
        if (op == Op::project_out) x[i] -= dot / square * v[i];
        if (op == Op::clamp) x[i] += (w.amount - std::max(dot, 0.0)) * v[width + i];
      }
    };
    const std::vector<double> expected = reference(by_hand);
    const auto vocab = static_cast<std::ptrdiff_t>(c.vocab_size);
    expect_close({s.logits().begin(), s.logits().end()}, {expected.end() - vocab, expected.end()},
                 point_name(at) + " " + intervention_op_name(op));
  }
}

// Tests each operation on scores and patterns: of some heads, and of some of the attended
// positions.
TEST_P(PointsOfFamily, ChangesOfAttentionAreThoseOfTheReference) {
  const ModelConfig& c = m->config();
  using Op = Intervention::Op;
  const double unseen = -std::numeric_limits<double>::infinity();
  struct Case {
    Point point;
    Op op;
    float amount;
    std::vector<float> values;
  };
  const std::vector<Case> cases = {{Point::scores, Op::set, 1, {-INFINITY}},
                                   {Point::scores, Op::set, 1, {0.5f, -INFINITY, -0.25f, 1, 0}},
                                   {Point::scores, Op::add, 2, {0.75f}},
                                   {Point::scores, Op::scale, 0.5f, {}},
                                   {Point::pattern, Op::scale, 0, {}},
                                   {Point::pattern, Op::scale, 1.5f, {}},
                                   {Point::pattern, Op::set, 1, {0.1f, 0.2f, 0, 0.3f, 0}},
                                   {Point::pattern, Op::add, -0.5f, {0.25f}}};
  // Two cases for each family, because the reference is slow.
  for (size_t i = std::string(GetParam()).size() % 4; i < cases.size(); i += 4) {
    const Case& one = cases[i];
    Intervention w;
    w.point = one.point, w.op = one.op, w.amount = one.amount;
    w.layers = {1}, w.heads = {c.heads - 1};
    w.begin = 20, w.end = 60, w.key_begin = 14, w.key_end = 19;
    if (!one.values.empty()) w.values = std::make_shared<const std::vector<float>>(one.values);
    const auto by_hand = [&](const std::string& point, size_t t, ReferenceModel::Vec& x) {
      if (point != point_name({one.point, 1}) || t < 20 || t >= 60) return;
      const size_t window = static_cast<size_t>(c.window.empty() ? 0 : c.window[1]);
      for (size_t k = 14; k < 19; ++k) {
        if (window > 0 && t >= k + window) continue;
        double& e = x[static_cast<size_t>(c.heads - 1) * ids.size() + k];
        const double v = one.values.empty() ? 0 : one.values[one.values.size() > 1 ? k - 14 : 0];
        e = one.op == Op::set                  ? v
            : one.op == Op::add && e != unseen ? e + one.amount * v
                                               : e * one.amount;
      }
    };
    const std::vector<double> expected = reference(by_hand);
    const auto vocab = static_cast<std::ptrdiff_t>(c.vocab_size);
    Session s(m, options(2));
    s.attach(w);
    s.append(ids);
    expect_close({s.logits().begin(), s.logits().end()}, {expected.end() - vocab, expected.end()},
                 point_name({one.point, 1}) + " " + intervention_op_name(one.op));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PointsOfFamily,
                         testing::Values("llama2-tiny-f16", "gemma-tiny", "gemma2-tiny",
                                         "gemma3-tiny", "mistral-tiny", "qwen2-tiny", "qwen3-tiny",
                                         "granite-tiny", "olmo2-tiny", "olmo3-tiny", "smollm3-tiny",
                                         "gpt2-tiny", "pythia-tiny", "phi3-tiny", "phi4-tiny",
                                         "qwen3moe-tiny", "mixtral-tiny", "olmoe-tiny",
                                         "gptoss-tiny"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace stet::test::points_of_families_tests
