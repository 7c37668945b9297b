// Points of the forward pass. Captured values are those of the pass for all chunk sizes, thread
// counts, instruction sets and batches. Declared interventions change them and stay part of the
// state.
#include <algorithm>
#include <cmath>
#include <map>

#include "stet/session/lens.hpp"
#include "stet/session/trace.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/snapshot/verify.hpp"
#include "tests/lab/captured_points.hpp"
#include "tests/support/kernel_testing.hpp"
#include "tests/support/models.hpp"

namespace stet::test::points_tests {
namespace {

class Points : public testing::TestWithParam<Subject> {
 protected:
  Session session(const SessionOptions& how) const { return Session(m, how); }
  SessionOptions how(int threads = 1, int64_t chunk = 512) const {
    SessionOptions o = options(threads, STET_DEFAULT_ISA, chunk, GetParam().contract);
    o.capacity = std::min<int64_t>(256, m->config().max_positions);
    return o;
  }
  // Returns interventions of every kind, starting at position 40.
  std::vector<Intervention> changes() const {
    const ModelConfig& c = m->config();
    using Op = Intervention::Op;
    std::vector<Intervention> all;
    const auto add = [&](Point p, Op op, std::vector<int64_t> heads, int64_t begin, int64_t end) {
      Intervention w;
      w.point = p, w.op = op, w.heads = std::move(heads), w.begin = begin, w.end = end;
      if (point_info(p).of_layer) w.layers = {c.layers - 1};
      const PointAt at{p, w.layers.empty() ? 0 : w.layers[0]};
      const size_t n =
          static_cast<size_t>(point_width(c, at, 0) / (w.heads.empty() ? 1 : point_heads(c, at))) *
          (op == Op::clamp ? 2 : 1);
      std::vector<float> v(n);
      for (size_t i = 0; i < n; ++i) v[i] = 0.01f * static_cast<float>(i % 11) - 0.05f;
      w.amount = 1.25f;
      if (op != Op::scale) w.values = std::make_shared<const std::vector<float>>(std::move(v));
      all.push_back(std::move(w));
    };
    add(Point::resid_pre, Op::add, {}, 0, -1);
    add(Point::v, Op::scale, {0}, 45, 60);
    add(has_point(c, PointAt{Point::mlp_post, c.layers - 1}) ? Point::mlp_post
                                                             : Point::expert_weights,
        Op::project_out, {}, 50, -1);
    add(Point::z, Op::set, {0}, 70, 71);
    add(Point::resid_post, Op::clamp, {}, 41, 100);
    return all;
  }
  Session steered(const SessionOptions& o, std::span<const int64_t> cuts = {}) const {
    Session s = session(o);
    s.append(std::span(ids).first(40));
    for (const Intervention& w : changes()) s.attach(w);
    size_t at = 40;
    for (const int64_t cut : cuts) {
      s.append(std::span(ids).subspan(at, static_cast<size_t>(cut) - at));
      at = static_cast<size_t>(cut);
    }
    s.append(std::span(ids).subspan(at));
    return s;
  }

  const std::shared_ptr<const Model> m = model(GetParam().directory, GetParam().contract);
  const std::vector<int32_t> ids =
      random_tokens(*m, static_cast<size_t>(std::min<int64_t>(130, m->config().max_positions - 2)));
  TemporaryDirectory scratch;
};

// A pattern is the softmax of its scores with q8 keys and values, too, on every instruction set.
TEST_P(Points, PatternsWithQ8KeysAndValues) {
  SessionOptions o = how(2, 48);
  o.kv_type = KvType::q8;
  Session s(m, o);
  Captured all = capture(s, ids);
  const auto heads = static_cast<size_t>(m->config().heads), n = ids.size();
  for (int64_t l = 0; l < m->config().layers; ++l) {
    const std::vector<float>&pattern = all[point_name({Point::pattern, l})],
          &scores = all[point_name({Point::scores, l})];
    for (size_t row = 0; row < n * heads; ++row) {
      const size_t t = row / heads;
      const float *const p = pattern.data() + row * n, *const x = scores.data() + row * n;
      double weight = 0;
      for (size_t i = 0; i <= t; ++i) weight += std::exp(double{x[i]} - x[t]);
      for (size_t i = 0; i <= t; ++i)
        EXPECT_NEAR(p[i], std::exp(double{x[i]} - x[t]) / weight, 2e-6);
    }
  }
  SessionOptions other = o;
  other.compute.isa = "portable";
  Session again(m, other);
  EXPECT_EQ(capture(again, ids), all);
}

// Relations between points hold bit for bit where one point equals another, or is a sum of others
// by one kernel.
TEST_P(Points, AddUp) {
  Session s = session(how(2, 48));
  const ModelConfig& c = m->config();
  Captured all = capture(s, ids);
  for (int64_t l = 0; l < c.layers; ++l) {
    const auto at = [&](Point p) -> const std::vector<float>& { return all[point_name({p, l})]; };
    const auto sum = [](std::vector<float> a, const std::vector<float>& b) {
      for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
      return a;
    };
    EXPECT_TRUE(same_bytes(sum(at(Point::resid_pre), at(Point::attn_out)), at(Point::resid_mid)));
    EXPECT_TRUE(same_bytes(sum(at(Point::resid_mid), at(Point::mlp_out)), at(Point::resid_post)));
    if (l > 0) {
      EXPECT_TRUE(same_bytes(all[point_name({Point::resid_post, l - 1})], at(Point::resid_pre)));
    }
    const auto heads = static_cast<size_t>(c.heads),
               group = heads / static_cast<size_t>(c.kv_heads);
    const auto dim = static_cast<size_t>(c.head_dim), n = ids.size();
    const std::vector<float>&pattern = at(Point::pattern), &scores = at(Point::scores),
          &z = at(Point::z), &v = at(Point::v);
    for (size_t t = 0; t < n; ++t) {
      for (size_t h = 0; h < heads; ++h) {
        const float* const p = pattern.data() + (t * heads + h) * n;
        const float* const x = scores.data() + (t * heads + h) * n;
        double total = 0, most = -1e300, weight = 0;
        for (size_t i = 0; i <= t; ++i) {
          total += p[i];
          most = std::max(most, double{x[i]});
        }
        for (size_t i = 0; i <= t; ++i) weight += std::exp(x[i] - most);
        EXPECT_NEAR(total, 1, 1e-5);
        for (size_t i = 0; i <= t; ++i) EXPECT_NEAR(p[i], std::exp(x[i] - most) / weight, 2e-6);
        for (size_t d = 0; d < dim; ++d) {
          double sum_of_values = 0;
          for (size_t i = 0; i <= t; ++i)
            sum_of_values +=
                double{p[i]} * v[(i * static_cast<size_t>(c.kv_heads) + h / group) * dim + d];
          EXPECT_NEAR(z[(t * heads + h) * dim + d], sum_of_values, 1e-4);
        }
      }
      for (int64_t h = 0; h < c.kv_heads && c.family != "gpt2"; ++h) {
        const std::vector<float> k = read_key(s.state(), l, h, static_cast<int64_t>(t));
        EXPECT_TRUE(same_bytes(
            k, std::span(at(Point::rot_k))
                   .subspan((t * static_cast<size_t>(c.kv_heads) + static_cast<size_t>(h)) * dim,
                            dim)));
      }
    }
  }
  const std::vector<float>& last = all[point_name({Point::resid_post, c.layers - 1})];
  std::vector<float> row(last.end() - c.hidden_size, last.end());
  const std::vector<float> lens = lens_logits(s, {row.data(), row.size(), row.size(), 1});
  EXPECT_TRUE(same_bytes(lens, s.logits()));
}

TEST_P(Points, AreTheSameHoweverTheyAreComputed) {
  Session first = session(how());
  const Captured expected = capture(first, ids);
  constexpr std::pair<int, int> kWays[] = {{1, 1}, {2, 7}, {2, 64}};
  size_t number = 0;
  for (const std::string& isa : isa_names()) {
    const auto [threads, chunk] = kWays[number++ % std::size(kWays)];
    SessionOptions o = how(threads, chunk);
    o.compute.isa = isa;
    Session s = session(o);
    EXPECT_TRUE(capture(s, ids) == expected) << isa << " " << threads << " " << chunk;
    EXPECT_TRUE(same_state(s, first)) << isa;
  }
  Session a = session(how()), b = session(how()), plain = session(how());
  Captured of_a;
  const Watch watch =
      watch_into(m->config(), points_of(m->config()), of_a, static_cast<int64_t>(ids.size()));
  b.attach(changes()[0]);
  const std::vector<BatchEntry> batch = {{&b, ids}, {&a, ids, &watch}};
  append(batch);
  EXPECT_TRUE(of_a == expected);
  plain.append(ids);
  EXPECT_TRUE(same_state(a, plain));
  EXPECT_FALSE(same_state(a, b));
}

TEST_P(Points, ChangesAreTheSameHoweverTheyAreComputed) {
  Session first = steered(how());
  const StateDigests expected = digests_of(first);
  for (const auto& [threads, chunk] : {std::pair(1, 1), std::pair(2, 7), std::pair(2, 64)}) {
    Session s = steered(how(threads, chunk), std::vector<int64_t>{41, 64, 99});
    EXPECT_TRUE(same_state(s, first));
    EXPECT_EQ(digests_of(s).id, expected.id);
  }
  for (const std::string& isa : isa_names()) {
    SessionOptions o = how();
    o.compute.isa = isa;
    Session s = steered(o);
    EXPECT_TRUE(same_state(s, first)) << isa;
  }
  Session plain = session(how());
  plain.append(ids);
  EXPECT_FALSE(same_state(plain, first));
  EXPECT_FALSE(digests_of(plain).id == expected.id);
  // Blocks before the changes keep their bytes and their identities.
  const auto names = first.block_identities(), others = plain.block_identities();
  EXPECT_FALSE(names.back() == others.back());
  Session early = session(how());
  early.append(std::span(ids).first(64));
  Session late = early.fork();
  late.attach(changes()[0]);
  late.append(std::span(ids).subspan(64));
  const auto changed = late.block_identities();
  EXPECT_EQ(changed[0], others[0]);
  if (changed.size() > 1) {  // the smallest models hold one full block
    EXPECT_FALSE(changed[1] == others[1]);
  }
}

TEST_P(Points, ChangesStayWithTheState) {
  Session s = steered(how());
  const StateDigests expected = digests_of(s);
  for (const SnapshotForm form : {SnapshotForm::full, SnapshotForm::recipe}) {
    SaveOptions save;
    save.form = form;
    const std::string file = scratch / (std::string(snapshot_form_name(form)) + ".stet");
    Snapshot::save(s, file, save);
    const Snapshot snapshot = Snapshot::open(file);
    EXPECT_EQ(snapshot.meta().interventions, s.interventions());
    RestoreOptions restore;
    restore.session = how();
    Session again = snapshot.restore(m, restore);
    EXPECT_TRUE(same_state(again, s));
    EXPECT_EQ(digests_of(again).id, expected.id);
    EXPECT_EQ(again.interventions(), s.interventions());
    EXPECT_FALSE(verify(snapshot, m, how(), false, nullptr));
    again.append({&ids[0], 1});
    Session on = s.fork();
    on.append({&ids[0], 1});
    EXPECT_TRUE(same_state(again, on));
  }
  Session replayed = replay(m, s.state(), how());
  EXPECT_TRUE(same_state(replayed, s));
  EXPECT_EQ(digests_of(replayed).id, expected.id);
  // A rewind keeps interventions attached before its position, and drops those attached after it.
  Session back = s.fork();
  back.rewind(70);
  EXPECT_EQ(back.interventions(), s.interventions());
  back.append(std::span(ids).subspan(70));
  EXPECT_TRUE(same_state(back, s));
  back.rewind(39);
  EXPECT_TRUE(back.interventions().empty());
  back.append(std::span(ids).subspan(39));
  Session plain = session(how());
  plain.append(ids);
  EXPECT_TRUE(same_state(back, plain));
  EXPECT_EQ(digests_of(back).id, digests_of(plain).id);
}

// A shift renumbers positions. An intervention in force stays in force, one that has ended stays
// over, and one that starts later refuses the shift.
TEST_P(Points, ChangesOutliveShifts) {
  if (m->config().ropes.empty()) return;
  const auto first = std::span(ids).first(80), rest = std::span(ids).subspan(80);
  for (const bool over : {false, true}) {
    Intervention w = changes()[0];
    w.end = over ? 70 : -1;
    Session s = session(how()), plain = session(how());
    s.append(first.first(60));
    plain.append(first.first(60));
    s.attach(w);
    s.append(first.subspan(60));
    plain.append(first.subspan(60));
    s.prune_range(4, 64, true);
    plain.prune_range(4, 64, true);
    Session none = s.fork();
    s.append(rest);
    Session replayed = replay(m, s.state(), how());
    EXPECT_TRUE(same_state(replayed, s));
    // The intervention changes only the last layer's input, from which the logits of the last token
    // follow. Keys and values are the same without it. So the logits differ while it is in force,
    // and agree once it has ended.
    State same_past = none.state();
    same_past.interventions.clear();
    Session without(m, same_past, how());
    none.append(rest.first(1));
    without.append(rest.first(1));
    EXPECT_EQ(same_bytes(none.logits(), without.logits()), over);
  }
  Session waits = session(how());
  waits.append(first);
  Intervention later = changes()[0];
  later.begin = 90, later.end = 95;
  waits.attach(later);
  EXPECT_NE(error_of([&] { waits.prune_range(4, 64, true); }).find("90..94"), std::string::npos);
  waits.prune_range(4, 64, false);
}

TEST_P(Points, ChangesThatChangeNothingChangeNoBit) {
  const ModelConfig& c = m->config();
  Session plain = session(how());
  Captured all = capture(plain, ids);
  for (const PointAt& at : points_of(c)) {
    if (!point_info(at.point).changes) continue;
    const auto width = static_cast<size_t>(point_width(c, at, 0));
    Intervention nothing, itself, once;
    for (Intervention* w : {&nothing, &itself, &once}) {
      w->point = at.point;
      if (point_info(at.point).of_layer) w->layers = {at.layer};
    }
    nothing.values = std::make_shared<const std::vector<float>>(width, 0.0f);
    itself.op = Intervention::Op::set;
    itself.begin = 10, itself.end = 20;
    const std::vector<float>& rows = all[point_name(at)];
    itself.values = std::make_shared<const std::vector<float>>(
        rows.begin() + static_cast<std::ptrdiff_t>(10 * width),
        rows.begin() + static_cast<std::ptrdiff_t>(20 * width));
    once.op = Intervention::Op::scale;
    Session s = session(how(2, 33));
    for (const Intervention& w : {nothing, itself, once}) s.attach(w);
    s.append(ids);
    EXPECT_TRUE(same_state(s, plain)) << point_name(at);
  }
}

// Returns a callback that adds x, as a declared intervention does to the bit. The state records
// that its tokens alone no longer reproduce it.
std::shared_ptr<const Callback> adding(const PointAt& at, float x) {
  return std::make_shared<const Callback>(Callback{{at}, [x](const PointAt&, int64_t, Rows rows) {
                                                     for (size_t i = 0; i < rows.count; ++i) {
                                                       for (size_t k = 0; k < rows.width; ++k)
                                                         rows.row(i)[k] += x;
                                                     }
                                                   }});
}

// A head whose input is changed is computed again. The other heads keep the result of a callback at
// ln1.
TEST_P(Points, InputsOfAHeadChangeOnlyThatHead) {
  const ModelConfig& c = m->config();
  if (!has_point(c, Point::ln1)) GTEST_SKIP() << "attention reads the residual stream itself";
  const int64_t layer = c.layers - 1, from = 40, end = 50;
  const auto dim = static_cast<size_t>(c.head_dim), heads = static_cast<size_t>(c.heads);
  Intervention one;
  one.point = Point::q_input;
  one.layers = {layer};
  one.heads = {1};
  one.begin = from, one.end = end;
  std::vector<float> direction(static_cast<size_t>(c.hidden_size));
  for (size_t i = 0; i < direction.size(); ++i) direction[i] = i % 3 == 0 ? 1.0f : -0.25f;
  one.values = std::make_shared<const std::vector<float>>(std::move(direction));
  const std::string q = point_name({Point::q, layer});
  std::vector<float> rows[2];
  for (const bool changed : {false, true}) {
    Session s = session(how(2, 33));
    s.attach(adding({Point::ln1, layer}, 0.25f));
    if (changed) s.attach(one);
    rows[changed] = capture(s, ids)[q];
  }
  for (size_t i = 0; i < rows[0].size(); i += dim) {
    const auto position = static_cast<int64_t>(i / (heads * dim));
    const bool same = std::memcmp(&rows[0][i], &rows[1][i], dim * sizeof(float)) == 0;
    EXPECT_EQ(same, i / dim % heads != 1 || position < from || position >= end) << i;
  }
}

TEST_P(Points, CallbacksChangeTheirPoint) {
  const PointAt at = {Point::resid_pre, m->config().layers - 1};
  Intervention declared;
  declared.point = at.point;
  declared.layers = {at.layer};
  declared.values = std::make_shared<const std::vector<float>>(
      static_cast<size_t>(m->config().hidden_size), 0.25f);
  const auto first = std::span(ids).first(70), rest = std::span(ids).subspan(70);
  Session expected = session(how());
  expected.append(first);
  Session plain = expected.fork();
  expected.attach(declared);
  expected.append(rest);
  plain.append(rest);
  for (const auto& [threads, chunk] : {std::pair(1, 512), std::pair(2, 7), std::pair(1, 1)}) {
    Session s = session(how(threads, chunk));
    s.append(first);
    s.attach(adding(at, 0.25f));
    std::vector<float> before(s.logits().begin(), s.logits().end());
    EXPECT_TRUE(s.edits().empty());  // no callback has run yet
    s.append(rest);
    EXPECT_EQ(kv_bytes(s.kv()), kv_bytes(expected.kv()));
    EXPECT_TRUE(same_bytes(s.logits(), expected.logits()));
    EXPECT_FALSE(digests_of(s).id == digests_of(expected).id);
    EXPECT_EQ(s.edits(), (std::vector<KvEdit>{{KvEdit::What::callback, 70, 0, 70, -1, -1}}));
    EXPECT_EQ(replay_limit(s.state())->position, 70);
    const auto names = s.block_identities();
    EXPECT_EQ(names[0], plain.block_identities()[0]);
    for (size_t b = 1; b < names.size(); ++b) {
      EXPECT_FALSE(names[b].replayable);
      EXPECT_EQ(names[b].id, block_content(s.kv().shape(), s.kv().block(static_cast<int64_t>(b))));
    }
    // A fork continues under the callback until it is detached. Rewinding to before it removes the
    // record.
    Session fork = s.fork(), other = expected.fork();
    const int32_t next[] = {ids[3]};
    fork.append(next);
    other.append(next);
    EXPECT_TRUE(same_bytes(fork.logits(), other.logits()));
    s.rewind(90);
    other.rewind(90);
    EXPECT_TRUE(same_bytes(s.logits(), other.logits()));
    s.rewind(70);
    EXPECT_TRUE(s.edits().empty());
    EXPECT_TRUE(same_bytes(s.logits(), before));
    s.detach_callbacks();
    s.append(rest);
    EXPECT_EQ(digests_of(s).id, digests_of(plain).id);
  }
}

TEST_P(Points, CallbackResultsAreKeptAndNeverRecomputed) {
  Session s = session(how());
  s.append(std::span(ids).first(70));
  s.attach(adding({Point::z, 0}, 0.5f));
  s.append(std::span(ids).subspan(70));
  const std::string file = scratch / "s.stet";
  Snapshot::save(s, file, {});
  const Snapshot snapshot = Snapshot::open(file);
  RestoreOptions restore;
  restore.session = how();
  Session again = snapshot.restore(m, restore);
  EXPECT_TRUE(same_state(again, s));
  EXPECT_EQ(digests_of(again).id, digests_of(s).id);
  EXPECT_EQ(again.callbacks(), 0u);
  EXPECT_FALSE(verify(snapshot, m, how(), false, nullptr));
  EXPECT_EQ(replayable_blocks(snapshot)[0], true);
  EXPECT_EQ(replayable_blocks(snapshot)[1], false);
  SaveOptions recipe;
  recipe.form = SnapshotForm::recipe;
  EXPECT_NE(error_of([&] {
              Snapshot::save(s, file, recipe);
            }).find("a callback changed activations from position 70 on"),
            std::string::npos);
  EXPECT_NE(error_of([&] { replay(m, s.state(), how()); }).find("edits"), std::string::npos);
}

TEST_P(Points, CallbacksThatFailLeaveAllAsItWas) {
  Session s = session(how(2, 16)), other = session(how(2, 16));
  s.append(std::span(ids).first(50));
  other.append(std::span(ids).first(20));
  const StateDigests before = digests_of(s), before_other = digests_of(other);
  const auto failing = [&](float x, int64_t from) {
    return std::make_shared<const Callback>(
        Callback{{{Point::mlp_out, 0}}, [=](const PointAt&, int64_t first, Rows rows) {
                   if (first + static_cast<int64_t>(rows.count) <= from) return;
                   if (x == 0) throw std::runtime_error("enough");
                   rows.row(rows.count - 1)[0] = x;
                 }});
  };
  for (const float x : {0.0f, std::nanf("")}) {
    s.attach(failing(x, 70));
    const std::string error = [&] {
      try {
        append(std::vector<BatchEntry>{{&other, std::span(ids).first(30)},
                                       {&s, std::span(ids).subspan(50)}});
      } catch (const std::exception& e) {
        return std::string(e.what());
      }
      return std::string();
    }();
    EXPECT_NE(error.find(x == 0 ? "enough" : "callback: blocks.0.hook_mlp_out, position "),
              std::string::npos)
        << error;
    s.detach_callbacks();
    EXPECT_TRUE(s.edits().empty());
    EXPECT_EQ(digests_of(s).id, before.id);
    EXPECT_EQ(digests_of(other).id, before_other.id);
  }
  for (const PointAt& at : {PointAt{Point::pattern, 0}, PointAt{Point::ln_final_scale, 0},
                            PointAt{Point::z, m->config().layers}})
    EXPECT_NE(error_of([&] { s.attach(adding(at, 1)); }).find(point_name(at)), std::string::npos);
  EXPECT_NE(error_of([&] { s.attach(std::shared_ptr<const Callback>()); }).find("callback"),
            std::string::npos);
  EXPECT_EQ(s.callbacks(), 0u);
}

// Each change of a sweep, starting from its layer and position, gives the bits of a full
// computation.
TEST_P(Points, TracesGiveTheSameBits) {
  const ModelConfig& c = m->config();
  const auto prompt = std::span(ids).subspan(20, 90);
  for (const auto& [threads, chunk] : {std::pair(1, 512), std::pair(2, 40)}) {
    Session before = session(how(threads, chunk));
    before.append(std::span(ids).first(20));
    before.attach(changes()[0]);
    Trace trace(before, prompt);
    std::vector<Intervention> some;
    for (const PointAt& at : points_of(c)) {
      if (!point_info(at.point).changes) continue;
      Intervention w;
      w.point = at.point;
      if (point_info(at.point).of_layer) w.layers = {at.layer};
      w.begin = some.size() % 3 == 0 ? 0 : 20 + static_cast<int64_t>(some.size() * 7 % 90);
      w.end = some.size() % 4 == 0 ? -1 : w.begin + 21;
      w.values = std::make_shared<const std::vector<float>>(
          static_cast<size_t>(point_width(c, at, 0)), 0.125f);
      some.push_back(std::move(w));
    }
    some.push_back(changes()[0]);  // all layers
    some.back().layers.clear();
    some.push_back(changes()[0]);  // begins after the prompt
    some.back().begin = 110;
    std::vector<std::vector<float>> found(some.size());
    trace.run(some, [&](size_t i, std::span<const float> logits) {
      EXPECT_TRUE(found[i].empty());
      found[i].assign(logits.begin(), logits.end());
    });
    for (size_t i = 0; i < some.size(); ++i) {
      Session plain = before.fork();
      plain.attach(some[i]);
      plain.append(prompt);
      EXPECT_TRUE(same_bytes(found[i], plain.logits())) << i;
    }
    some[2].layers = {c.layers};
    EXPECT_NE(error_of([&] { trace.run(some, nullptr); }).find("changes[2]: intervention: layers"),
              std::string::npos);
  }
}

// Changes of scores and patterns do not depend on chunks, threads, batches and files. A change
// without effect changes no bit. Captured values include the changes.
TEST_P(Points, ChangesOfAttentionKeepTheBits) {
  const ModelConfig& c = m->config();
  using Op = Intervention::Op;
  const auto change = [&](Point point, Op op, std::vector<float> values, int64_t key_end) {
    Intervention w;
    w.point = point, w.op = op, w.amount = 1.25f;
    w.begin = 45, w.key_begin = 3, w.key_end = key_end;
    if (op != Op::scale) w.values = std::make_shared<const std::vector<float>>(std::move(values));
    return w;
  };
  const std::vector<Intervention> all = {
      change(Point::scores, Op::set, {-INFINITY}, 12), change(Point::scores, Op::add, {0.5f}, -1),
      change(Point::pattern, Op::scale, {}, 70), change(Point::pattern, Op::set, {0.125f}, 5)};
  const auto attached = [&](const SessionOptions& o, size_t cut, KvType type) {
    SessionOptions as = o;
    as.kv_type = type;
    Session s(m, as);
    s.append(std::span(ids).first(40));
    for (const Intervention& w : all) s.attach(w);
    for (size_t at = 40; at < ids.size(); at += cut)
      s.append(std::span(ids).subspan(at, std::min(cut, ids.size() - at)));
    return s;
  };
  for (const KvType type : {KvType::f32, KvType::bf16, KvType::q8}) {
    Session whole = attached(how(), ids.size(), type), pieces = attached(how(2, 16), 7, type),
            single = attached(how(2), 1, type);
    EXPECT_TRUE(same_state(whole, pieces));
    EXPECT_TRUE(same_state(whole, single));
    SessionOptions as = how();
    as.kv_type = type;
    Session plain(m, as), nothing(m, as);
    plain.append(ids);
    EXPECT_FALSE(same_bytes(plain.logits(), whole.logits()));
    for (Intervention w : all) {  // adds nothing, scales by one
      w.op = w.op == Op::set ? Op::add : w.op;
      w.amount = w.op == Op::scale ? 1 : 0;
      if (w.values) w.values = std::make_shared<const std::vector<float>>(1, 0.5f);
      nothing.attach(w);
    }
    nothing.append(ids);
    EXPECT_TRUE(same_bytes(plain.logits(), nothing.logits()));
  }
  Session first = attached(how(), ids.size(), KvType::f32), second = session(how());
  Snapshot::save(first, scratch / "s.stet", {});
  const Snapshot snapshot = Snapshot::open(scratch / "s.stet");
  EXPECT_FALSE(verify(snapshot, m, how(), false, nullptr));
  EXPECT_TRUE(snapshot.meta().interventions == first.interventions());
  second.append(std::span(ids).first(40));
  for (const Intervention& w : all) second.attach(w);
  const Captured seen = [&] {
    Captured rows;
    const Watch watch = watch_into(c, {{Point::scores, 1}, {Point::pattern, 1}}, rows,
                                   static_cast<int64_t>(ids.size()));
    second.append(std::span(ids).subspan(40), nullptr, nullptr, nullptr, &watch);
    return rows;
  }();
  const size_t row = static_cast<size_t>(c.heads) * ids.size();
  const std::vector<float>&scores = seen.at(point_name({Point::scores, 1})),
        &pattern = seen.at(point_name({Point::pattern, 1}));
  EXPECT_EQ(scores[10 * row + 8], -INFINITY);
  EXPECT_EQ(pattern[10 * row + 8], 0);
  const int64_t window = c.window.empty() ? 0 : c.window[1];
  EXPECT_EQ(pattern[10 * row + 4], window == 0 || window > 46 ? 0.125f : 0.0f);
}

TEST_P(Points, InvalidInterventionsAreRefused) {
  Session s = session(how());
  s.append(std::span(ids).first(20));
  const ModelConfig& c = m->config();
  const auto refused = [&](auto change) {
    Intervention w;
    w.values = std::make_shared<const std::vector<float>>(static_cast<size_t>(c.hidden_size));
    change(w);
    const std::string error = error_of([&] { s.attach(w); });
    EXPECT_TRUE(error.find("intervention") != std::string::npos) << error;
    EXPECT_TRUE(s.interventions().empty());
  };
  refused([&](Intervention& w) { w.layers = {c.layers}; });
  refused([&](Intervention& w) { w.layers = {0, 0}; });
  refused([&](Intervention& w) { w.heads = {0}; });
  refused([&](Intervention& w) { w.point = Point::pattern; });  // needs as many values as keys
  refused([&](Intervention& w) { w.key_begin = 1; });           // this point has no keys
  refused([&](Intervention& w) { w.end = -2; });                // no snapshot holds these
  refused([&](Intervention& w) { w.end = kMaxPositions + 1; });
  refused([&](Intervention& w) { w.begin = kMaxPositions + 1; });
  refused([&](Intervention& w) { w.point = Point::z, w.end = kMaxPositions + 1; });
  refused([&](Intervention& w) { w.point = Point::scores, w.op = Intervention::Op::clamp; });
  refused([&](Intervention& w) { w.point = Point::ln1_scale; });
  refused([&](Intervention& w) { w.point = Point::z, w.heads = {c.heads}; });
  refused([&](Intervention& w) { w.begin = 5, w.end = 5; });
  refused([&](Intervention& w) { w.begin = 5, w.end = 20; });  // already processed
  refused([&](Intervention& w) { w.values = nullptr; });
  refused([&](Intervention& w) { w.amount = std::nanf(""); });
  refused([&](Intervention& w) {
    w.values =
        std::make_shared<const std::vector<float>>(static_cast<size_t>(c.hidden_size), INFINITY);
  });
  using Op = Intervention::Op;
  for (const Op op : {Op::add, Op::project_out, Op::clamp}) {  // products that overflow
    refused([&](Intervention& w) {
      w.op = op, w.amount = op == Op::project_out ? 1.0f : -1e20f;
      w.values = std::make_shared<const std::vector<float>>(
          static_cast<size_t>(c.hidden_size) * (op == Op::clamp ? 2 : 1), 1e20f);
    });
  }
  if (c.family == "gpt2") refused([&](Intervention& w) { w.point = Point::rot_q; });
  const Watch watch{{{Point::resid_pre, c.layers}}, [](const PointAt&, int64_t, Rows) {}};
  EXPECT_NE(error_of([&] {
              s.append({&ids[0], 1}, nullptr, nullptr, nullptr, &watch);
            }).find("points[0]"),
            std::string::npos);
  EXPECT_EQ(s.size(), 20);
}

INSTANTIATE_TEST_SUITE_P(Models, Points, testing::ValuesIn([] {
                           std::vector<Subject> some;
                           for (const Subject& s : subjects_and_contracts()) {
                             for (const char* name :
                                  {"gemma3-tiny", "llama31-tiny", "gpt2-tiny", "qwen3-tiny",
                                   "llama31-tiny@q4", "gemma3-tiny-bf16@bf16",
                                   "llama2-tiny-f16@q8"}) {
                               if (s.name == name) some.push_back(s);
                             }
                           }
                           return some;
                         }()),
                         subject_name);

}  // namespace
}  // namespace stet::test::points_tests
