// Comparing states: the first difference of each part, deviations of keys and values, and
// divergence, against plain arithmetic.
#include "stet/snapshot/compare.hpp"

#include <algorithm>
#include <cmath>

#include "tests/support/models.hpp"

namespace stet::test::compare_tests {
namespace {

const std::string kTiny = data_path("models/gemma3-tiny");

struct Compare : testing::Test {
  Session session(int64_t tokens, KvType type = KvType::f32) const {
    SessionOptions o = options(1);
    o.kv_type = type;
    Session s(m, o);
    s.append(stepped_ids(tokens, 7, 50, 0, 1));
    return s;
  }
  std::string saved(Session& s, const std::string& name, const SaveOptions& how = {}) const {
    Snapshot::save(s, scratch / name, how);
    return scratch / name;
  }
  static const Comparison::Part& part(const Comparison& c, const std::string& name) {
    for (const Comparison::Part& p : c.parts) {
      if (p.name == name) return p;
    }
    throw std::runtime_error("no part " + name);
  }

  const std::shared_ptr<const Model> m = model(kTiny);
  TemporaryDirectory scratch;
};

TEST_F(Compare, EqualStatesAreEqualInEveryPart) {
  Session a = session(70), b = session(70);
  const Comparison c = compare(a.state(), b.state());
  EXPECT_TRUE(c.equal());
  EXPECT_EQ(c.common_tokens, 70);
  EXPECT_EQ(c.equal_positions, 70);
  EXPECT_EQ(c.a_from_b, 0.0);
  ASSERT_EQ(c.layers.size(), static_cast<size_t>(m->config().layers));
  for (const Comparison::Layer& layer : c.layers) {
    EXPECT_EQ(layer.keys.largest, 0);
    EXPECT_EQ(layer.values.rms, 0);
  }
}

TEST_F(Compare, APrefixAgreesAsFarAsItGoes) {
  Session a = session(70), b = session(100);
  const Comparison c = compare(a.state(), b.state());
  EXPECT_EQ(part(c, "tokens").difference->text(), "number of tokens: expected 70, found 100");
  EXPECT_EQ(part(c, "tokens").difference->found_number, 100.0);
  EXPECT_FALSE(part(c, "keys").difference);
  EXPECT_FALSE(part(c, "values").difference);
  EXPECT_TRUE(part(c, "logits").difference);
  EXPECT_EQ(c.common_tokens, 70);
  EXPECT_EQ(c.equal_positions, 70);
}

TEST_F(Compare, EditedNumbersAreFoundAndMeasured) {
  Session a = session(70), b = session(70);
  const KvShape& shape = a.kv().shape();
  const size_t dims = static_cast<size_t>(shape.head_dim);
  State edited = b.state();
  const std::vector<float> ones(dims, 1), twos(dims, 2);
  set_key(edited, 1, 0, 66, ones);
  set_value(edited, 0, 0, 3, twos);
  const Comparison c = compare(a.state(), edited);
  const Difference& key = *part(c, "keys").difference;
  EXPECT_EQ(key.position, 66);
  EXPECT_EQ(key.layer, 1);
  EXPECT_EQ(key.head, 0);
  EXPECT_EQ(key.element, 0);
  EXPECT_EQ(key.found_number, 1.0);
  EXPECT_EQ(part(c, "values").difference->position, 3);
  EXPECT_EQ(c.equal_positions, 3);
  EXPECT_TRUE(part(c, "edits").difference);
  EXPECT_FALSE(part(c, "logits").difference);

  double largest = 0, squares = 0;
  for (size_t d = 0; d < dims; ++d) {
    const std::byte* at = a.kv().block(1) + shape.k_offset(1, 0) + (d * kBlockPositions + 2) * 4;
    const double apart = 1.0 - read_element(KvType::f32, at);
    largest = std::max(largest, std::abs(apart));
    squares += apart * apart;
  }
  EXPECT_EQ(c.layers[1].keys.largest, largest);
  EXPECT_DOUBLE_EQ(c.layers[1].keys.rms,
                   std::sqrt(squares / static_cast<double>(70 * shape.kv_heads * shape.head_dim)));
  EXPECT_EQ(c.layers[0].keys.largest, 0);
  EXPECT_EQ(c.layers[1].values.largest, 0);
  EXPECT_GT(c.layers[0].values.largest, 0);
}

TEST_F(Compare, NumbersOfDifferentTypesAreCompared) {
  Session a = session(10);
  const State rounded = with_kv_type(a.state(), KvType::bf16);
  const Comparison c = compare(a.state(), rounded);
  EXPECT_TRUE(part(c, "kv shape").difference);
  EXPECT_TRUE(part(c, "keys").difference);
  for (const Comparison::Layer& layer : c.layers) {
    EXPECT_GT(layer.keys.largest, 0);
    EXPECT_LE(layer.keys.rms, layer.keys.largest);
  }
  // Rounded values are not rounded again.
  const Comparison same = compare(rounded, with_kv_type(rounded, KvType::f32));
  EXPECT_FALSE(part(same, "keys").difference);
  EXPECT_FALSE(part(same, "values").difference);
}

TEST_F(Compare, PrunedPositionsAreAMatterOfVisibility) {
  Session a = session(100), b = session(100);
  b.prune_range(20, 40, false);
  const Comparison c = compare(a.state(), b.state());
  EXPECT_EQ(part(c, "visibility").difference->position, 20);
  EXPECT_EQ(part(c, "visibility").difference->found, "pruned");
  EXPECT_FALSE(part(c, "keys").difference);
  EXPECT_TRUE(part(c, "prunes").difference);
  EXPECT_EQ(c.equal_positions, 20);
}

TEST_F(Compare, DivergenceIsThatOfTheDistributions) {
  Session a = session(5), b = session(6);
  const Comparison c = compare(a.state(), b.state());
  const auto distribution = [](std::span<const float> logits) {
    long double sum = 0;
    const float top = *std::max_element(logits.begin(), logits.end());
    for (const float x : logits) sum += std::exp(static_cast<long double>(x) - top);
    std::vector<long double> p;
    for (const float x : logits) p.push_back(std::exp(static_cast<long double>(x) - top) / sum);
    return p;
  };
  const auto p = distribution(a.logits()), q = distribution(b.logits());
  long double pq = 0, qp = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    pq += p[i] * std::log(p[i] / q[i]);
    qp += q[i] * std::log(q[i] / p[i]);
  }
  EXPECT_NEAR(*c.a_from_b, static_cast<double>(pq), 1e-12);
  EXPECT_NEAR(*c.b_from_a, static_cast<double>(qp), 1e-12);
  EXPECT_GT(pq, 0);
}

TEST_F(Compare, RecipesCompareByDigestsAndNoteSkippedParts) {
  Session a = session(150), longer = session(160), other = session(150);
  const Snapshot full = Snapshot::open(saved(a, "full.stet")),
                 recipe = Snapshot::open(saved(a, "recipe.stet", {.form = SnapshotForm::recipe})),
                 more = Snapshot::open(saved(longer, "longer.stet"));
  const Comparison same = compare(full, recipe);
  EXPECT_TRUE(same.equal());
  EXPECT_TRUE(part(same, "keys and values").compared);
  EXPECT_EQ(same.equal_positions, 150);
  EXPECT_FALSE(same.a_from_b);
  const Comparison prefix = compare(recipe, more);
  EXPECT_FALSE(part(prefix, "keys and values")
                   .compared);  // the third block holds 22 positions of one, 32 of the other
  EXPECT_FALSE(part(prefix, "keys and values").difference);
  EXPECT_EQ(prefix.equal_positions, 128);
  EXPECT_EQ(prefix.common_tokens, 150);

  State edited = other.state();
  const std::vector<float> ones(static_cast<size_t>(a.kv().shape().head_dim), 1);
  set_value(edited, 1, 0, 100, ones);
  Snapshot::save(edited, full, scratch / "edited.stet", {});
  const Comparison apart = compare(recipe, Snapshot::open(scratch / "edited.stet"));
  EXPECT_EQ(part(apart, "keys and values").difference->what, "keys and values of block 1");
  EXPECT_EQ(part(apart, "keys and values").difference->layer, 1);
  EXPECT_EQ(apart.equal_positions, 64);
}

}  // namespace
}  // namespace stet::test::compare_tests
