// Points of recurrent layers: what is captured there, and interventions on states.
#include <algorithm>
#include <list>
#include <map>
#include <memory>

#include "stet/session/published_arrays.hpp"
#include "stet/session/trace.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/snapshot/verify.hpp"
#include "tests/support/files.hpp"
#include "tests/support/kernel_testing.hpp"
#include "tests/support/models.hpp"

namespace stet::test::recurrent_points_tests {
namespace {

using Captured = std::map<std::string, std::vector<float>>;
using Op = Intervention::Op;

constexpr int64_t kSize = 100, kAt = 70;  // tokens, and a position whose states are looked at
constexpr int64_t kStep = 23;             // from one position whose states are captured to the next

class RecurrentPoints : public testing::TestWithParam<const char*> {
 protected:
  Session session(int64_t chunk = 512, int threads = 1) const {
    return Session(m, options(threads, STET_DEFAULT_ISA, chunk));
  }
  std::span<const int32_t> part(int64_t begin, int64_t end) const {
    return std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  }
  bool has_states() const { return m->config().recurrence.heads > 0; }
  std::vector<PointAt> points() const {
    std::vector<PointAt> all = points_of(m->config());
    std::erase_if(all, [](const PointAt& at) { return !is_of_recurrence(at.point); });
    return all;
  }
  Watch watch_into(Captured& to, std::vector<int64_t> states) const {
    return {points(),
            [&to](const PointAt& at, int64_t, Rows r) {
              std::vector<float>& all = to[point_name(at)];
              for (size_t i = 0; i < r.count; ++i)
                all.insert(all.end(), r.row(i), r.row(i) + r.width);
            },
            std::move(states)};
  }
  // Appends tokens, and captures hook_state at every kStep-th position.
  Captured capture(Session& s, std::span<const int32_t> some) const {
    Captured all;
    std::vector<int64_t> states;
    for (int64_t p = kAt % kStep; p < kSize; p += kStep) states.push_back(p);
    const Watch watch = watch_into(all, states);
    s.append(some, nullptr, nullptr, nullptr, &watch);
    return all;
  }
  // Returns the state of a layer after the session's last token, as captures have it.
  std::vector<float> published_state(const Session& s, int64_t layer) const {
    for (const PublishedArray& a : published_arrays(m->config())) {
      if (a.layer != layer || a.name != "state") continue;
      std::vector<float> x(a.count());
      a.publish(s.recurrent().array(a.layer, static_cast<size_t>(a.index)), x);
      return x;
    }
    return {};
  }
  Intervention change(Op op, int64_t begin, int64_t end, std::vector<int64_t> heads = {}) const {
    Intervention w;
    w.point = Point::state;
    w.layers = {0};
    w.heads = std::move(heads);
    w.begin = begin, w.end = end;
    w.op = op;
    w.amount = 0.25f;
    if (op == Op::scale) return w;
    const Recurrence& r = m->config().recurrence;
    std::vector<float> x(
        static_cast<size_t>(r.key_dim * r.value_dim * (w.heads.empty() ? r.heads : 1)));
    for (size_t i = 0; i < x.size(); ++i) x[i] = 0.01f * static_cast<float>(i % 13) - 0.05f;
    w.values = std::make_shared<const std::vector<float>>(std::move(x));
    return w;
  }
  // Interventions that begin and end within blocks and chunks, at several positions.
  std::vector<Intervention> changes() const {
    return {change(Op::scale, 5, 6, {1}), change(Op::set, 30, 33), change(Op::scale, 64, 66),
            change(Op::set, kAt, kAt + 1, {0, 2})};
  }
  Session changed(int64_t size, int64_t chunk = 512, int threads = 1) const {
    Session s = session(chunk, threads);
    for (const Intervention& w : changes()) s.attach(w);
    s.append(part(0, size));
    return s;
  }
  void expect_same(Session& a, Session& b, const std::string& what) const {
    EXPECT_TRUE(same_bytes(a.recurrent().numbers(), b.recurrent().numbers())) << what;
    EXPECT_TRUE(same_bytes(a.logits(), b.logits())) << what;
    EXPECT_TRUE(same_state(a, b)) << what;
    EXPECT_EQ(digests_of(a).id, digests_of(b).id) << what;
  }

  const std::string directory = data_path(std::string("models/") + GetParam());
  const std::shared_ptr<const Model> m = model(directory);
  const std::vector<int32_t> ids = random_tokens(*m, kSize);
  TemporaryDirectory scratch;
};

TEST_P(RecurrentPoints, CapturesDoNotDependOnChunksAndChangeNothing) {
  Session plain = session(), whole = session();
  plain.append(ids);
  const Captured expected = capture(whole, ids);
  EXPECT_EQ(expected.size(), points().size());
  expect_same(whole, plain, "captured");
  for (const auto& [chunk, threads] : {std::pair(1, 1), std::pair(7, 2), std::pair(64, 1)}) {
    Session s = session(chunk, threads);
    const Captured found = capture(s, ids);
    for (const auto& [name, rows] : expected) EXPECT_TRUE(same_bytes(found.at(name), rows)) << name;
    expect_same(s, plain, std::to_string(chunk));
  }
  Session a = session(), b = session();
  Captured of_a, of_b;
  const Watch watch_a = watch_into(of_a, {kAt}), watch_b = watch_into(of_b, {1});
  append(std::vector<BatchEntry>{{&b, part(0, 20), &watch_b}, {&a, ids, &watch_a}});
  expect_same(a, plain, "of a batch");
  for (const PointAt& at : points()) {
    if (at.point != Point::state) continue;
    const std::vector<float>& states = expected.at(point_name(at));
    const auto width = static_cast<size_t>(point_width(m->config(), at, 0));
    for (int64_t p = kAt % kStep, i = 0; p < kSize; p += kStep, ++i) {
      Session there = session();
      there.append(part(0, p + 1));
      const std::vector<float> state = published_state(there, at.layer);
      const auto row = std::span(states).subspan(static_cast<size_t>(i) * width, width);
      EXPECT_TRUE(same_bytes(row, state)) << point_name(at) << " " << p;
      if (p == kAt) {
        EXPECT_TRUE(same_bytes(of_a.at(point_name(at)), row)) << point_name(at);
      }
      if (p == 1) {
        EXPECT_TRUE(same_bytes(of_b.at(point_name(at)), row)) << point_name(at);
      }
    }
  }
}

TEST_P(RecurrentPoints, CapturesOfABatchAreThoseOfEachAlone) {
  const int64_t before[] = {0, 20, 63, 5}, after[] = {kSize, kAt, kSize, 6};
  const std::vector<int64_t> states[] = {{99, 0, 64}, {20, 69, 70}, {}, {5}};
  const auto begun = [&](size_t i, int64_t chunk, int threads) {
    Session s = session(chunk, threads);
    if (has_states() && i % 2 == 1) s.attach(change(Op::scale, 5, 66, {1}));
    if (before[i] > 0) s.append(part(0, before[i]));
    return s;
  };
  const auto watch_of = [&](size_t i, Captured& to) {
    Watch watch = watch_into(to, states[i]);
    if (states[i].empty())
      std::erase_if(watch.points, [](const PointAt& at) { return at.point == Point::state; });
    return watch;
  };
  std::vector<Captured> alone(4);
  std::vector<Session> expected;
  for (size_t i = 0; i < 4; ++i) {
    const Watch watch = watch_of(i, alone[i]);
    expected.push_back(begun(i, 512, 1));
    expected[i].append(part(before[i], after[i]), nullptr, nullptr, nullptr, &watch);
  }
  for (const auto& [chunk, threads] :
       {std::pair(512, 1), std::pair(1, 1), std::pair(7, 2), std::pair(64, 1)}) {
    std::vector<Captured> found(4);
    std::list<Watch> watches;
    std::vector<Session> sessions;
    std::vector<BatchEntry> batch;
    for (size_t i = 0; i < 4; ++i) sessions.push_back(begun(i, chunk, threads));
    for (size_t i = 0; i < 4; ++i) {
      watches.push_back(watch_of(i, found[i]));
      batch.push_back({&sessions[i], part(before[i], after[i]), &watches.back()});
    }
    append(batch);
    for (size_t i = 0; i < 4; ++i) {
      const std::string what = std::to_string(chunk) + ", entry " + std::to_string(i);
      EXPECT_EQ(found[i], alone[i]) << what;
      expect_same(sessions[i], expected[i], what);
    }
  }
}

TEST(WatchedStates, OfAPassFitInMemory) {
  const auto m = model(data_path("models/qwen35-odd-tiny"));
  constexpr int64_t kEach = 60;  // no anchor ends a pass
  const std::vector<int32_t> ids = random_tokens(*m, kEach);
  size_t row = 0, seen = 0, passes = 0;
  Watch watch{{}, [&](const PointAt&, int64_t, Rows r) { seen += r.width * sizeof(float); }};
  for (const PointAt& at : points_of(m->config())) {
    if (at.point != Point::state) continue;
    watch.points.push_back(at);
    row += static_cast<size_t>(point_width(m->config(), at, 0)) * sizeof(float);
  }
  for (int64_t p = 0; p < kEach; ++p) watch.state_positions.push_back(p);
  const size_t sessions = (size_t{64} << 20) / (row * static_cast<size_t>(kEach)) + 1;
  std::vector<Session> all;
  std::vector<BatchEntry> batch;
  for (size_t i = 0; i < sessions; ++i)
    all.emplace_back(m, options(1, STET_DEFAULT_ISA, static_cast<int64_t>(sessions) * kEach));
  for (Session& s : all) batch.push_back({&s, ids, &watch});
  append(batch, {.after_layer = [&] { ++passes; }});
  EXPECT_EQ(seen, row * sessions * static_cast<size_t>(kEach));
  EXPECT_EQ(passes / static_cast<size_t>(m->config().layers), 2u);
}

TEST_P(RecurrentPoints, CapturesGoWithHiddenStates) {
  Session s = session(32);
  Captured all;
  const Watch watch = watch_into(all, {3, kAt, 71});
  std::map<size_t, int64_t> hidden;
  s.append(
      ids, nullptr, [&](size_t i, int64_t, Rows r) { hidden[i] += static_cast<int64_t>(r.count); },
      nullptr, &watch);
  EXPECT_EQ(hidden.size(), static_cast<size_t>(m->config().layers) + 1);
  for (const auto& [i, rows] : hidden) EXPECT_EQ(rows, kSize) << i;
  for (const PointAt& at : points()) {
    const auto width = static_cast<size_t>(point_width(m->config(), at, 0));
    EXPECT_EQ(all.at(point_name(at)).size(), width * (at.point == Point::state ? 3 : kSize));
  }
}

TEST_P(RecurrentPoints, WhatDoesNotApplyIsRefusedByName) {
  Session s = session();
  const Watch watch{{{Point::conv, 0}, {Point::state, 0}}, [](const PointAt&, int64_t, Rows) {}};
  const auto capture = [&] { s.append(ids, nullptr, nullptr, nullptr, &watch); };
  const auto attention = static_cast<int64_t>(std::ranges::find(m->config().recurrent_of, 0) -
                                              m->config().recurrent_of.begin());
  Intervention w = change(Op::scale, 0, 1);
  if (!has_states()) {
    EXPECT_EQ(
        message_of(capture),
        "points[1]: expected a point of family lfm2 with 5 layers, found blocks.0.hook_state");
    EXPECT_EQ(message_of([&] { s.attach(w); }),
              "intervention: point: expected one of family lfm2, found hook_state");
    return;
  }
  EXPECT_EQ(message_of(capture),
            "points[1]: expected state_positions: the positions at which to capture "
            "blocks.0.hook_state, of " +
                std::to_string(4 * point_width(m->config(), {Point::state, 0}, 0)) +
                " bytes each, found none");
  const Watch elsewhere{{{Point::beta, attention}}, [](const PointAt&, int64_t, Rows) {}};
  EXPECT_EQ(message_of([&] { s.append(ids, nullptr, nullptr, nullptr, &elsewhere); }),
            "points[0]: expected a recurrent layer, found " + point_name({Point::beta, attention}));
  const Watch heads{{{Point::z, 0}}, [](const PointAt&, int64_t, Rows) {}};
  EXPECT_EQ(message_of([&] { s.append(ids, nullptr, nullptr, nullptr, &heads); }),
            "points[0]: expected a layer with attention, found blocks.0.attn.hook_z");
  for (const Op op : {Op::add, Op::project_out, Op::clamp}) {
    w.op = op;
    EXPECT_EQ(message_of([&] { s.attach(w); }),
              std::string("intervention: op: expected set or scale of hook_state, found ") +
                  intervention_op_name(op));
  }
  w = change(Op::scale, 0, 1, {m->config().recurrence.heads});
  EXPECT_NE(message_of([&] { s.attach(w); }).find("heads: expected 0.."), std::string::npos);
  w = change(Op::set, 0, 1);
  w.heads = {0};
  EXPECT_NE(message_of([&] { s.attach(w); }).find("values: expected "), std::string::npos);
  w = change(Op::scale, 0, 1);
  w.layers = {attention};
  EXPECT_EQ(message_of([&] { s.attach(w); }),
            "intervention: layers: expected recurrent layers, found " + std::to_string(attention) +
                ", which has attention");
  w.point = Point::z, w.layers = {0};
  EXPECT_EQ(message_of([&] { s.attach(w); }),
            "intervention: layers: expected layers with attention, found 0, which is recurrent");
  const auto callback = std::make_shared<const Callback>(
      Callback{{{Point::state, 0}}, [](const PointAt&, int64_t, Rows) {}});
  EXPECT_EQ(message_of([&] { s.attach(callback); }),
            "callback: expected a point that can be changed, found blocks.0.hook_state");
  EXPECT_EQ(s.size(), 0);
  EXPECT_TRUE(s.interventions().empty());
}

TEST_P(RecurrentPoints, ChangedGatesAndConvolutionsDoNotDependOnChunks) {
  const auto run = [&](const PointAt& at, int64_t chunk, int threads) {
    Session s = session(chunk, threads);
    Intervention w;
    w.point = at.point;
    w.layers = {at.layer};
    w.begin = 20, w.end = kAt;
    w.op = Op::scale;
    w.amount = 0.5f;
    s.attach(w);
    s.append(ids);
    return s;
  };
  Session plain = session();
  plain.append(ids);
  for (const PointAt& at : points()) {
    if (at.point == Point::state) continue;
    Session expected = run(at, 512, 1);
    EXPECT_FALSE(same_bytes(expected.logits(), plain.logits())) << point_name(at);
    for (const auto& [chunk, threads] : {std::pair(1, 1), std::pair(9, 2)}) {
      Session s = run(at, chunk, threads);
      expect_same(s, expected, point_name(at) + " " + std::to_string(chunk));
    }
  }
}

TEST_P(RecurrentPoints, SettingTheStateThatIsThereChangesNothing) {
  if (!has_states()) return;
  Session plain = session();
  const Captured captured = capture(plain, ids);
  for (const PointAt& at : points()) {
    if (at.point != Point::state) continue;
    Intervention w;
    w.point = Point::state;
    w.layers = {at.layer};
    w.begin = kAt % kStep, w.end = w.begin + 1;
    w.op = Op::set;
    const auto width = static_cast<size_t>(point_width(m->config(), at, 0));
    const std::vector<float>& rows = captured.at(point_name(at));
    w.values = std::make_shared<const std::vector<float>>(
        rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(width));
    Session s = session(), scaled = session();
    s.attach(w);
    s.append(ids);
    w.op = Op::scale, w.values = nullptr, w.amount = 1, w.end = -1;
    scaled.attach(w);
    scaled.append(ids);
    for (Session* one : {&s, &scaled}) {
      EXPECT_TRUE(same_bytes(one->recurrent().numbers(), plain.recurrent().numbers()));
      EXPECT_TRUE(same_bytes(one->logits(), plain.logits()));
      EXPECT_NE(digests_of(*one).id, digests_of(plain).id) << "an intervention is in the identity";
    }
  }
}

TEST_P(RecurrentPoints, ChangedStatesAreThoseThatWereSet) {
  if (!has_states()) return;
  Session s = session(), plain = session();
  const std::vector<Intervention> all = {change(Op::set, 20, 21), change(Op::scale, 22, 23, {1})};
  for (const Intervention& w : all) s.attach(w);
  Captured found, before;
  const Watch watch = watch_into(found, {20, 22}), watch_plain = watch_into(before, {20});
  s.append(part(0, 23), nullptr, nullptr, nullptr, &watch);
  plain.append(part(0, 21), nullptr, nullptr, nullptr, &watch_plain);
  const std::string name = "blocks.0.hook_state";
  const size_t width = before.at(name).size(),
               head = width / static_cast<size_t>(m->config().recurrence.heads);
  EXPECT_TRUE(same_bytes(std::span(found.at(name)).first(width), *all[0].values));
  EXPECT_TRUE(same_bytes(std::span(found.at(name)).subspan(width), published_state(s, 0)));
  Session unscaled = session();
  unscaled.attach(all[0]);
  unscaled.append(part(0, 23));
  const std::vector<float> scaled = published_state(s, 0), full = published_state(unscaled, 0);
  for (size_t i = 0; i < width; ++i)
    EXPECT_EQ(scaled[i], i / head == 1 ? full[i] * 0.25f : full[i]) << i;
}

TEST_P(RecurrentPoints, BitsDoNotDependOnChunksThreadsAndBatches) {
  if (!has_states()) return;
  Session expected = changed(kSize), plain = session();
  plain.append(ids);
  EXPECT_FALSE(same_bytes(expected.logits(), plain.logits()));
  for (const auto& [chunk, threads] :
       {std::pair(1, 1), std::pair(7, 2), std::pair(33, 1), std::pair(64, 2)}) {
    Session s = changed(kSize, chunk, threads);
    expect_same(s, expected, std::to_string(chunk));
  }
  Session a = changed(20), b = session(), c = changed(kAt);
  append(std::vector<BatchEntry>{{&b, ids}, {&a, part(20, kSize)}, {&c, part(kAt, kSize)}});
  expect_same(a, expected, "a");
  expect_same(b, plain, "without interventions");
  expect_same(c, expected, "c");
  for (const std::string& isa : isa_names()) {
    Session s(m, options(1, isa, 16));
    for (const Intervention& w : changes()) s.attach(w);
    s.append(ids);
    expect_same(s, expected, isa);
  }
}

TEST_P(RecurrentPoints, ChangedStatesAreVerifiedRewoundAndReplayed) {
  if (!has_states()) return;
  Session s = changed(kSize);
  for (const int64_t to : {99, 71, 70, 65, 64, 33, 31, 6, 5, 1}) {
    Session one = s.fork(), fresh = changed(to);
    const int64_t cost = one.rewind_cost(to);
    EXPECT_LE(cost, to) << to;
    one.rewind(to);
    expect_same(one, fresh, "rewound to " + std::to_string(to));
    one.append(part(to, kSize));
    expect_same(one, s, "continued from " + std::to_string(to));
  }
  const std::string file = scratch / "s.stet";
  Snapshot::save(s, file, {});
  const Snapshot snapshot = Snapshot::open(file);
  EXPECT_FALSE(verify(snapshot, m, options(2), false, nullptr));
  RestoreOptions restore;
  restore.session = options(1);
  Session again = snapshot.restore(m, restore);
  expect_same(again, s, "restored");
  EXPECT_EQ(again.interventions(), s.interventions());
  again.rewind(68);
  Session fresh = changed(68);
  expect_same(again, fresh, "rewound after a restore");
  SaveOptions recipe;
  recipe.form = SnapshotForm::recipe;
  Snapshot::save(s, file, recipe);
  Session replayed = Snapshot::open(file).restore(m, restore);
  expect_same(replayed, s, "replayed");
  EXPECT_TRUE(s.edits().empty());
}

TEST_P(RecurrentPoints, DetachedChangesEndAndTracesGiveTheSameBits) {
  if (!has_states()) return;
  Intervention open = change(Op::scale, 40, -1, {0});
  Session s = session(), ended = session();
  s.append(part(0, 30));
  s.attach(open);
  s.append(part(30, kAt));
  s.detach(0, kAt);
  s.append(part(kAt, kSize));
  ended.append(part(0, 30));
  open.end = kAt;
  ended.attach(open);
  ended.append(part(30, kSize));
  expect_same(s, ended, "detached");

  Session before = session();
  before.append(part(0, 30));
  Trace trace(before, part(30, kSize));
  const std::vector<Intervention> some = {change(Op::set, 64, 65), change(Op::scale, 50, 60, {1})};
  trace.run(some, [&](size_t i, std::span<const float> logits) {
    Session alone = session();
    alone.append(part(0, 30));
    alone.attach(some[i]);
    alone.append(part(30, kSize));
    EXPECT_TRUE(same_bytes(logits, alone.logits())) << i;
  });
}

INSTANTIATE_TEST_SUITE_P(Families, RecurrentPoints,
                         testing::Values("qwen35-odd-tiny", "qwen3next-tiny", "granite-odd-tiny",
                                         "lfm2-odd-tiny"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace stet::test::recurrent_points_tests
