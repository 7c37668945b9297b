// Models whose layers differ: in the shape of their keys and values, in their rotation, or by reading
// the keys and values of another layer.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "stet/session/kv_range.hpp"
#include "stet/session/prune.hpp"
#include "stet/session/splice.hpp"
#include "stet/snapshot/compare.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/snapshot/verify.hpp"
#include "tests/support/models.hpp"

namespace stet::test::differing_layers_tests {
namespace {

class DifferingLayers : public testing::TestWithParam<const char*> {
 protected:
  Session session(int64_t tokens, KvType type = KvType::f32) const {
    SessionOptions o = options(1);
    o.capacity = 300;
    o.kv_type = type;
    Session s(m, o);
    s.append(std::span(ids).first(static_cast<size_t>(tokens)));
    return s;
  }

  std::shared_ptr<const Model> m = model(data_path(std::string("models/") + GetParam()));
  const ModelConfig& c = m->config();
  const std::vector<int32_t> ids = random_tokens(*m, 200);
};

INSTANTIATE_TEST_SUITE_P(Models, DifferingLayers,
                         testing::Values("gemma4-dense-tiny", "gemma4-small-tiny", "gemma3n-tiny",
                                         "gptoss-tiny"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Returns the angle per position of a pair of dimensions, in float64, by the definition. Full layers
// of Gemma 4 rotate the first quarter of their pairs. gpt-oss has YaRN, whose bounds are not rounded.
double frequency(const ModelConfig& c, const LayerShape& layer, int64_t pair) {
  const Rope& rope = c.ropes[static_cast<size_t>(layer.rope)];
  if (c.family == "gemma4" && layer.window == 0 && pair >= layer.key_dim / 2 / 4) return 0;
  const double dim = static_cast<double>(layer.key_dim), i = static_cast<double>(pair),
               plain = std::pow(rope.theta, -2 * i / dim);
  if (c.family != "gpt_oss") return plain;
  const auto pair_that_turns = [&](double times) {
    return dim * std::log(rope.original_positions / (times * 2 * std::acos(-1.0))) /
           (2 * std::log(rope.theta));
  };
  const double low = std::max(0.0, pair_that_turns(rope.beta_fast)),
               high = std::min(dim - 1, pair_that_turns(rope.beta_slow)),
               part = std::clamp((i - low) / (high - low), 0.0, 1.0);
  return plain * (1 - part) + plain / rope.factor * part;
}

// Returns the key rotated back by `distance` positions, in float64.
std::vector<double> turned_back(const ModelConfig& c, const LayerShape& layer,
                                const std::vector<float>& key, int64_t distance) {
  std::vector<double> turned(key.begin(), key.end());
  const size_t half = key.size() / 2;
  for (size_t i = 0; i < half; ++i) {
    const double angle =
        static_cast<double>(distance) * frequency(c, layer, static_cast<int64_t>(i));
    const double a = key[i], b = key[i + half];
    turned[i] = a * std::cos(angle) + b * std::sin(angle);
    turned[i + half] = b * std::cos(angle) - a * std::sin(angle);
  }
  return turned;
}

TEST_P(DifferingLayers, ShiftedKeysTurnByTheFrequenciesOfTheirLayer) {
  const State before = session(150).state();
  State after = before;
  prune_range(after, c, 10, 47, true);
  for (int64_t l = 0; l < c.layers; ++l) {
    const LayerShape layer = c.layer(l);
    if (!layer.own) continue;
    for (int64_t h = 0; h < layer.kv_heads; ++h) {
      for (const int64_t p : {0, 9, 47, 63, 64, 149}) {
        const int64_t to = p < 10 ? p : p - 37;
        const std::vector<float> key = read_key(before, l, h, p), found = read_key(after, l, h, to);
        const std::vector<double> expected = turned_back(c, layer, key, p - to);
        for (size_t d = 0; d < found.size(); ++d)
          ASSERT_NEAR(found[d], expected[d], 1e-5) << "layer " << l << ", position " << p;
        EXPECT_EQ(read_value(after, l, h, to), read_value(before, l, h, p));
      }
    }
  }
}

// Splicing the positions that a prune leaves gives the bytes of the prune.
TEST_P(DifferingLayers, SplicedKeysAreThoseThatAShiftLeaves) {
  for (const KvType type : {KvType::f32, KvType::q8}) {
    const State whole = session(150, type).state();
    State shifted = whole;
    prune_range(shifted, c, 10, 47, true);
    const std::vector<Cut> cuts = {{&whole, 0, 10}, {&whole, 47, 150}};
    const State spliced = splice(c, cuts);
    EXPECT_EQ(kv_bytes(spliced.kv), kv_bytes(shifted.kv));
    EXPECT_EQ(spliced.tokens, shifted.tokens);
  }
}

TEST_P(DifferingLayers, AreSavedForkedAndComputedAgain) {
  const TemporaryDirectory scratch;
  for (const KvType type : {KvType::f32, KvType::bf16, KvType::f16, KvType::q8}) {
    const std::string file = scratch / (std::string(kv_type_name(type)) + ".stet");
    Session s = session(130, type);
    Snapshot::save(s, file);
    const Snapshot saved = Snapshot::open(file);
    saved.check();
    EXPECT_TRUE(verify(saved, m, {}, false).whole());
    Session restored = saved.restore(m), fork = s.fork();
    const std::span<const int32_t> more = std::span(ids).subspan(130, 20);
    for (Session* one : {&s, &restored, &fork}) one->append(more);
    EXPECT_TRUE(same_state(s, restored));
    Session fresh = session(150, type);
    EXPECT_TRUE(same_state(s, fresh));
    fork.rewind(100);
    fork.append(std::span(ids).subspan(100, 50));
    EXPECT_TRUE(same_state(s, fork));
  }
}

// Memory and files hold only keys and values that layers own.
TEST_P(DifferingLayers, KeepTheirOwnKeysAndValuesAlone) {
  Session s = session(70);
  size_t numbers = 0;
  for (int64_t l = 0; l < c.layers; ++l) {
    const LayerShape layer = c.layer(l);
    if (layer.own)
      numbers += static_cast<size_t>(layer.kv_heads * (layer.key_dim + layer.value_dim));
  }
  EXPECT_EQ(s.kv().shape().content_bytes(), numbers * 64 * sizeof(float));
}

TEST_P(DifferingLayers, WindowsAloneGiveTheSameBits) {
  SessionOptions o = options(1);
  o.window.only = true;
  o.window.checkpoint_every = 0;
  Session windowed(m, o), whole(m, options(1));
  for (size_t i = 0; i < ids.size(); i += 50) {
    const auto some = std::span(ids).subspan(i, 50);
    windowed.append(some);
    whole.append(some);
    ASSERT_TRUE(same_bytes(windowed.logits(), whole.logits()));
  }
  EXPECT_FALSE(windowed.kv().block_info(0).holds_all());
}

// ---------------------------------------------------------------- layers that read another's

class SharedLayers : public testing::Test {
 protected:
  std::shared_ptr<const Model> m = model(data_path("models/gemma4-small-tiny"));
  Session session = [this] {
    Session s(m, options(1));
    s.append(random_tokens(*m, 20));
    return s;
  }();
};

TEST_F(SharedLayers, AreThoseOfTheConfig) {
  EXPECT_EQ(m->config().owner_of, (std::vector<int64_t>{0, 1, 2, 1, 1, 2}));
}

TEST_F(SharedLayers, RefuseEditsAndNameTheLayerTheyRead) {
  const std::string refused =
      "expected a layer with keys and values of its own, found 3, which reads those of layer 1";
  const std::vector<float> x(16, 0.5f);
  EXPECT_EQ(error_of([&] { session.set_key(3, 0, 5, x); }), "argument: layer: " + refused);
  EXPECT_EQ(error_of([&] { session.set_value(3, 0, 5, x); }), "argument: layer: " + refused);
  State state = session.state();
  EXPECT_EQ(error_of([&] { read_key(state, 3, 0, 5); }), "argument: layer: " + refused);
  EXPECT_EQ(error_of([&] { zero_kv(state, {{3}, {}, 0, 5}); }), "argument: layers: " + refused);
  zero_kv(state, {{}, {}, 0, 5});  // all layers that have some
  EXPECT_EQ(read_key(state, 2, 0, 4), std::vector<float>(32, 0.0f));
}

TEST_F(SharedLayers, RefuseHooksOfKeysAndValues) {
  for (const Point point : {Point::k, Point::v, Point::rot_k, Point::k_input, Point::v_input}) {
    Intervention w;
    w.point = point;
    w.op = Intervention::Op::scale;
    w.layers = {5};
    EXPECT_EQ(error_of([&] { session.attach(w); }),
              "argument: intervention: layers: expected layers with keys and values of their own, "
              "found 5, which reads those of layer 2");
    Watch watch;
    watch.points = {{point, 5}};
    watch.sink = [](const PointAt&, int64_t, Rows) {};
    const std::string name = point_info(point).name;
    EXPECT_EQ(error_of([&] {
                session.append(std::vector<int32_t>{3}, nullptr, nullptr, nullptr, &watch);
              }),
              "argument: points[0]: expected a layer with keys and values of its own (blocks.2." +
                  name + " is what this layer reads), found blocks.5." + name);
  }
}

// A change of the owner's keys is seen by the layers that read them.
TEST_F(SharedLayers, SeeWhatBecomesOfTheKeysThatTheyRead) {
  Session changed = session.fork(), plain = session.fork();
  changed.set_value(1, 0, 19, std::vector<float>(16, 3.0f));
  std::vector<float> z[2];
  for (Session* s : {&plain, &changed}) {
    Watch watch;
    watch.points = {{Point::z, 4}};
    watch.sink = [&](const PointAt&, int64_t, Rows r) {
      z[s == &changed].assign(r.row(0), r.row(0) + r.width);
    };
    s->append(std::vector<int32_t>{3}, nullptr, nullptr, nullptr, &watch);
  }
  EXPECT_FALSE(same_bytes(z[0], z[1]));
}

// ---------------------------------------------------------------- long positions

// Angles at positions that no fixture reaches: float32(position) x float32(frequency), of which the
// cosine is rounded once.
TEST(LongPositions, AnglesStayThoseOfTheirFloat32Frequencies) {
  Rope rope;
  rope.theta = 1e6;
  rope.scaling = Rope::Scaling::proportional;
  rope.part = 0.25;
  const std::vector<float> frequencies = inverse_frequencies(rope, 512);
  ASSERT_EQ(frequencies.size(), 256u);
  EXPECT_EQ(std::count(frequencies.begin(), frequencies.end(), 0.0f), 192);
  std::vector<float> cos(256), sin(256);
  for (const int64_t position : {100001, 131071, 262143}) {
    rope_angles(position, frequencies, cos.data(), sin.data());
    for (size_t i = 0; i < 256; ++i) {
      const double f = i < 64 ? std::pow(1e6, -static_cast<double>(i) / 256) : 0;
      EXPECT_NEAR(frequencies[i], f, 2e-7 * f);
      const float angle = static_cast<float>(position) * frequencies[i];
      EXPECT_NEAR(cos[i], std::cos(static_cast<double>(angle)), 1e-7) << position << " pair " << i;
      EXPECT_NEAR(sin[i], std::sin(static_cast<double>(angle)), 1e-7) << position << " pair " << i;
    }
  }
}

}  // namespace
}  // namespace stet::test::differing_layers_tests
