// Sessions of models with recurrent layers: their arrays are what the tokens give, whatever way the
// session took.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>

#include "stet/session/splice.hpp"
#include "stet/session/trace.hpp"
#include "stet/snapshot/compare.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/snapshot/verify.hpp"
#include "tests/support/models.hpp"
#include "tests/support/recurrent_family.hpp"

namespace stet::test::recurrent_tests {
namespace {

class Recurrent : public testing::Test {
 protected:
  Session session(int64_t tokens, SessionOptions o = options(1)) const {
    o.capacity = 700;
    Session s(m, o);
    s.append(first(tokens));
    return s;
  }
  std::span<const int32_t> first(int64_t tokens) const {
    return std::span(ids).first(static_cast<size_t>(tokens));
  }
  std::span<const int32_t> part(int64_t begin, int64_t end) const {
    return first(end).subspan(static_cast<size_t>(begin));
  }
  std::vector<int64_t> anchors(const Session& s) const {
    std::vector<int64_t> at;
    for (const auto& a : s.anchors().all()) at.push_back(a->position);
    return at;
  }

  // Compares all that a session of the first tokens must have.
  void expect_same(Session& s, int64_t tokens, const std::string& what) const {
    Session fresh = session(tokens);
    EXPECT_TRUE(same_bytes(s.recurrent().numbers(), fresh.recurrent().numbers())) << what;
    EXPECT_TRUE(same_bytes(s.logits(), fresh.logits())) << what;
    EXPECT_TRUE(same_state(s, fresh)) << what;
  }

  std::shared_ptr<const Model> m = recurrent_model();
  const std::vector<int32_t> ids = random_tokens(*m, 700);
};

TEST_F(Recurrent, ArraysDependOnEveryTokenAndNotOnChunks) {
  Session whole = session(200);
  EXPECT_EQ(whole.recurrent().shape().numbers, 2u * (30 + 18));
  for (const int64_t chunk : {1, 7, 64, 512}) {
    SessionOptions o = options(2, STET_DEFAULT_ISA, chunk);
    Session s = session(200, o);
    expect_same(s, 200, std::to_string(chunk));
  }
  Session other(m, options(1));
  std::vector<int32_t> changed(ids.begin(), ids.begin() + 200);
  changed[0] ^= 1;
  other.append(changed);
  EXPECT_FALSE(same_bytes(other.recurrent().array(0, 0), whole.recurrent().array(0, 0)));
  EXPECT_FALSE(same_bytes(other.recurrent().array(2, 0), whole.recurrent().array(2, 0)));
  EXPECT_TRUE(same_bytes(other.recurrent().array(0, 1), whole.recurrent().array(0, 1)))
      << "a convolution forgets all but its last inputs";
}

TEST_F(Recurrent, FailedAppendsLeaveTheArrays) {
  Session s = session(100);
  const std::vector<int64_t> before = anchors(s);
  EXPECT_THROW(s.append(part(100, 300),
                        [](int64_t position, Rows) {
                          if (position > 150) throw std::runtime_error("sink");
                        }),
               std::runtime_error);
  EXPECT_EQ(anchors(s), before);
  expect_same(s, 100, "after a failure");
  s.append(part(100, 300));
  expect_same(s, 300, "after a success");
}

TEST_F(Recurrent, BatchesGiveEachSessionItsOwnArrays) {
  Session a = session(10), b = session(130), c = a.fork();
  const BatchEntry batch[] = {{&a, part(10, 200)}, {&b, part(130, 131)}, {&c, part(10, 77)}};
  append(batch);
  expect_same(a, 200, "a");
  expect_same(b, 131, "b");
  expect_same(c, 77, "c");
}

TEST_F(Recurrent, AnchorsStandAtTheLastBlockEndsAndWhereAsked) {
  Session s = session(0);
  s.anchor_at({17, 250});
  s.append(first(200));
  EXPECT_EQ(anchors(s), (std::vector<int64_t>{17, 128, 192}));
  s.append(part(200, 300));
  EXPECT_EQ(anchors(s), (std::vector<int64_t>{17, 192, 250, 256}));
  for (int64_t i = 300; i < 330; ++i) s.append(part(i, i + 1));
  EXPECT_EQ(anchors(s), (std::vector<int64_t>{17, 250, 256, 320}));
  EXPECT_EQ(anchors(s.fork()).back(), 330);
  s.keep_anchor();
  EXPECT_EQ(anchors(s).back(), 330);
  for (const auto& anchor : s.anchors().all()) {
    Session fresh = session(anchor->position);
    EXPECT_TRUE(same_bytes({anchor->arrays->numbers(), s.recurrent().shape().numbers},
                           fresh.recurrent().numbers()))
        << anchor->position;
  }
}

TEST_F(Recurrent, OnlyTheBudgetThinsAnchors) {
  SessionOptions o = options(1);
  o.anchor_bytes = 4 * static_cast<int64_t>(recurrent_shape(m->config()).bytes());
  Session s = session(0, o);
  s.anchor_at({10, 20, 30, 40, 50});
  s.append(first(60));
  EXPECT_EQ(anchors(s), (std::vector<int64_t>{10, 30, 40, 50}));
  o.anchor_bytes = 0;
  Session none = session(200, o);
  EXPECT_TRUE(none.anchors().empty());
  EXPECT_EQ(none.rewind_cost(150), 150);
  none.rewind(150);
  expect_same(none, 150, "without anchors");
}

TEST_F(Recurrent, ARewindIsExactAndCostsWhatItSaid) {
  const int64_t from[] = {300, 299, 270, 257, 256, 255, 193, 192, 130, 64, 1, 0};
  Session s = session(0);
  s.anchor_at({130, 270});
  s.append(first(300));
  for (const int64_t to : from) {
    Session one = s.fork();
    const int64_t cost = one.rewind_cost(to);
    int64_t nearest = to == 300 ? 300 : 0;
    for (const int64_t a : anchors(s)) nearest = a <= to ? std::max(nearest, a) : nearest;
    EXPECT_EQ(cost, to - nearest) << to;
    one.rewind(to);
    expect_same(one, to, "rewound to " + std::to_string(to));
    one.append(part(to, 310));
    expect_same(one, 310, "continued from " + std::to_string(to));
    s.rewind(to);  // step by step, too
    expect_same(s, to, "stepped to " + std::to_string(to));
  }
}

TEST_F(Recurrent, LogitsComeBackWithoutAnchorsToo) {
  SessionOptions o = options(1);
  o.anchor_bytes = 0;
  Session s = session(100, o);
  s.rewind(60);
  const State kept = s.state();
  Session again(m, kept, o);
  again.rewind(60);
  expect_same(again, 60, "again");
}

TEST_F(Recurrent, InterventionsApplyWhenTokensAreProcessedAgain) {
  const Intervention change{.point = Point::resid_post,
                            .layers = {0},
                            .heads = {},
                            .op = Intervention::Op::add,
                            .amount = 3,
                            .values = std::make_shared<std::vector<float>>(64, 0.25f)};
  Session s = session(100), plain = session(100);
  s.attach(change);
  s.append(part(100, 200));
  Session to_130 = session(100);
  to_130.attach(change);
  to_130.append(part(100, 130));
  s.rewind(130);
  EXPECT_TRUE(same_bytes(s.recurrent().numbers(), to_130.recurrent().numbers()));
  EXPECT_TRUE(same_state(s, to_130));
  s.rewind(90);
  expect_same(s, 90, "before the intervention");
}

TEST_F(Recurrent, ARewindOfAnEditedStateIsExact) {
  const std::vector<float> x(static_cast<size_t>(m->config().head_dim), 0.5f);
  Session s = session(150);
  s.set_key(1, 0, 70, x);
  s.append(part(150, 290));
  Session edited = session(150);
  edited.set_key(1, 0, 70, x);
  edited.append(part(150, 230));
  // The tokens before the edit give the arrays, although the edited key stays.
  for (const int64_t to : {71, 128, 149}) {
    Session one = s.fork(), fresh = session(to);
    one.rewind(to);
    EXPECT_TRUE(same_bytes(one.recurrent().numbers(), fresh.recurrent().numbers())) << to;
    EXPECT_TRUE(same_bytes(one.logits(), fresh.logits())) << to;
    EXPECT_EQ(read_key(one.state(), 1, 0, 70), x);
  }
  Session before = s.fork();
  before.rewind(70);  // the edit goes
  expect_same(before, 70, "before the edited position");
  s.rewind(230);  // computed again from the edit on
  EXPECT_TRUE(same_bytes(s.recurrent().numbers(), edited.recurrent().numbers()));
  EXPECT_TRUE(same_bytes(s.logits(), edited.logits()));
  EXPECT_EQ(digests_of(s).id, digests_of(edited).id);
}

TEST_F(Recurrent, ARewindOverARoundingIsRefusedUnlessAnAnchorStandsThere) {
  Session exact = session(150);
  Session s(m, with_kv_type(exact.state(), KvType::bf16), options(1));
  EXPECT_EQ(message_of([&] { s.rewind(140); }),
            "rewind: expected a position with an anchor (64, 128, 150): tokens do not give the "
            "recurrent arrays of others (keys and values were rounded to another type), found 140");
  EXPECT_EQ(s.size(), 150);
  EXPECT_TRUE(same_bytes(s.recurrent().numbers(), exact.recurrent().numbers()));
  s.append(part(150, 200));
  Session again(m, with_kv_type(exact.state(), KvType::bf16), options(1));
  again.append(part(150, 170));
  s.rewind(170);
  EXPECT_TRUE(same_bytes(s.recurrent().numbers(), again.recurrent().numbers()));
  s.rewind(128);
  Session fresh = session(128);
  EXPECT_TRUE(same_bytes(s.recurrent().numbers(), fresh.recurrent().numbers()));
}

// Anchors of a rounded state were computed with keys and values of the earlier type. They must not
// be taken for anchors of the new type, which have the same names and other arrays.
TEST_F(Recurrent, RoundingKeepsAnchorsByContent) {
  Session s = session(150);
  for (const auto& a : s.anchors().all()) EXPECT_FALSE(a->by_content);
  const State rounded = with_kv_type(s.state(), KvType::bf16);
  EXPECT_EQ(rounded.anchors.size(), s.anchors().size());
  for (const auto& a : rounded.anchors.all()) EXPECT_TRUE(a->by_content) << a->position;
  const State longer = with_kv_type(s.state(), KvType::f32, 300);
  for (const auto& a : longer.anchors.all()) EXPECT_FALSE(a->by_content) << a->position;
}

// Without the anchors at 64 and 128, nothing could give their arrays again. Those at later block
// ends can go: the tokens after the rounding give their arrays again.
TEST_F(Recurrent, AnchorsFromBeforeARoundingStayWhenLaterBlocksEnd) {
  Session exact = session(150);
  Session s(m, with_kv_type(exact.state(), KvType::bf16), options(1));
  for (int64_t i = 150; i < 330; ++i) s.append(part(i, i + 1));
  EXPECT_EQ(anchors(s), (std::vector<int64_t>{64, 128, 150, 256, 320}));
  Session to192(m, with_kv_type(exact.state(), KvType::bf16), options(1));
  to192.append(part(150, 192));
  EXPECT_EQ(s.rewind_cost(192), 42);
  s.rewind(192);
  EXPECT_TRUE(same_bytes(s.recurrent().numbers(), to192.recurrent().numbers()));
  for (const int64_t to : {128, 64}) {
    EXPECT_EQ(s.rewind_cost(to), 0);
    s.rewind(to);
    EXPECT_TRUE(same_bytes(s.recurrent().numbers(), session(to).recurrent().numbers())) << to;
  }
}

TEST_F(Recurrent, ArraysCanBeSetAndThenTokensDoNotGiveThem) {
  Session s = session(100);
  State set = s.state();
  const std::vector<float> x(30, 7);
  set_array(set, 2, 0, x);
  Session changed(m, set, options(1));
  EXPECT_TRUE(same_bytes(changed.recurrent().array(2, 0), x));
  EXPECT_NE(digests_of(changed).id, digests_of(s).id);
  EXPECT_EQ(message_of([&] { set_array(set, 1, 0, x); }), "array: expected 0..-1, found 0");
  changed.append(part(100, 140));
  const std::vector<float> after(changed.recurrent().numbers().begin(),
                                 changed.recurrent().numbers().end());
  changed.append(part(140, 150));
  changed.rewind(140);
  EXPECT_TRUE(same_bytes(changed.recurrent().numbers(), after));
  changed.rewind(100);
  EXPECT_TRUE(same_bytes(changed.recurrent().array(2, 0), x));
  changed.rewind(90);
  expect_same(changed, 90, "before the arrays were set");
}

TEST_F(Recurrent, PruneSpliceAndCopiesAreRefusedByName) {
  Session s = session(100), other = session(100);
  EXPECT_EQ(message_of([&] {
              s.prune({50, 4, false});
            }),
            "prune: expected --recompute, which processes the tokens that stay anew: recurrent "
            "layers cannot forget tokens, found family recurrent_test");
  EXPECT_NE(message_of([&] { s.prune_range(1, 5, true); }).find("--recompute"), std::string::npos);
  EXPECT_EQ(message_of([&] {
              s.copy_kv({{1}, {}, 0, 10}, other, 0);
            }),
            "copy_kv: expected states without recurrent layers, whose arrays depend on every token "
            "before, found a state with recurrent layers");
  const Cut cuts[] = {{&s.state(), 0, 10}, {&other.state(), 20, 30}};
  EXPECT_NE(message_of([&] { splice(m->config(), cuts); }).find("splice: expected states without"),
            std::string::npos);
  EXPECT_NE(message_of([&] { s.set_key(0, 0, 3, {}); }).find("0, which is recurrent"),
            std::string::npos);
  expect_same(s, 100, "unchanged");
}

TEST_F(Recurrent, PruneRefusesNegativeNumbersInEitherWay) {
  Session s = session(100);
  for (const bool anew : {false, true}) {
    EXPECT_EQ(message_of([&] {
                s.prune({-1, 4, false, anew});
              }),
              "keep-last: expected 0 or more, found -1");
    EXPECT_EQ(message_of([&] {
                s.prune({50, -3, false, anew});
              }),
              "sinks: expected 0 or more, found -3");
  }
  expect_same(s, 100, "unchanged");
}

TEST_F(Recurrent, PruneCanProcessWhatStaysAnew) {
  Session s = session(100);
  EXPECT_EQ(s.prune({50, 4, true, true}), 46);
  EXPECT_TRUE(s.prunes().empty());
  Session fresh(m, options(1));
  fresh.append(first(4));
  fresh.append(part(50, 100));
  EXPECT_TRUE(same_bytes(s.recurrent().numbers(), fresh.recurrent().numbers()));
  EXPECT_EQ(digests_of(s).id, digests_of(fresh).id);
}

TEST_F(Recurrent, WindowOnlySessionsKeepWhatAnchorsSee) {
  SessionOptions o = options(1);
  int64_t told = 0;
  o.window = {true, 0, [&](int64_t tokens) { told = tokens; }};
  Session s = session(0, o);
  s.anchor_at({100, 210});
  s.append(first(600));
  for (const int64_t to : {600, 590, 400, 210, 180, 100, 20}) {
    Session one = s.fork();
    const int64_t cost = one.rewind_cost(to);
    told = 0;
    one.rewind(to);
    EXPECT_EQ(told, cost) << to;
    if (to == 210 || to == 100) {
      EXPECT_EQ(cost, 0);
    }
    one.append(part(to, to + 3));
    Session fresh = session(to + 3);
    EXPECT_TRUE(same_bytes(one.recurrent().numbers(), fresh.recurrent().numbers())) << to;
    EXPECT_TRUE(same_bytes(one.logits(), fresh.logits())) << to;
    EXPECT_EQ(digests_of(one).state, digests_of(fresh).state) << to;
  }
  s.set_before_recall(nullptr);
  EXPECT_NE(message_of([&] { s.rewind(400); }).find("permission to process"), std::string::npos);
}

TEST_F(Recurrent, ATraceRunsRecurrentLayersFromThePromptOn) {
  const Intervention change{.point = Point::resid_post,
                            .layers = {3},
                            .heads = {},
                            .begin = 120,
                            .end = 121,
                            .op = Intervention::Op::scale,
                            .amount = 0.5f,
                            .values = nullptr};
  Session before = session(100);
  Trace trace(before, part(100, 130));
  std::vector<float> traced;
  trace.run(std::span(&change, 1), [&](size_t, std::span<const float> logits) {
    traced.assign(logits.begin(), logits.end());
  });
  Session s = session(100);
  s.attach(change);
  s.append(part(100, 130));
  EXPECT_TRUE(same_bytes(traced, s.logits()));
}

// Models whose layers are all recurrent have blocks without bytes.
TEST(WithoutAttention, StatesAreSavedForkedRewoundAndRestored) {
  for (const Subject& subject : subjects_without_attention()) {
    SCOPED_TRACE(subject.name);
    const auto m = model(subject.directory);
    const std::vector<int32_t> ids = random_tokens(*m, 300);
    const auto session = [&](int64_t tokens) {
      Session s(m, options(1));
      s.append(std::span(ids).first(static_cast<size_t>(tokens)));
      return s;
    };
    const auto expect_same = [](Session& a, Session b) {
      EXPECT_TRUE(same_bytes(a.recurrent().numbers(), b.recurrent().numbers()));
      EXPECT_TRUE(same_state(a, b));
      EXPECT_EQ(digests_of(a).id, digests_of(b).id);
    };
    Session s = session(200);
    EXPECT_EQ(s.kv().shape().block_bytes(), 0u);
    Session fork = s.fork();
    fork.append(std::span(ids).subspan(200));
    expect_same(fork, session(300));
    fork.rewind(200);
    expect_same(fork, session(200));
    EXPECT_EQ(fork.rewind_cost(70), 70 - 64 * (fork.anchors().find(64) != nullptr));
    fork.rewind(70);
    expect_same(fork, session(70));
    const TemporaryDirectory scratch;
    Snapshot::save(s, scratch / "parent.stet");
    const Snapshot parent = Snapshot::open(scratch / "parent.stet");
    Session longer = session(290);
    for (const SnapshotForm form :
         {SnapshotForm::full, SnapshotForm::delta, SnapshotForm::recipe}) {
      for (const int level : {0, 9}) {
        if (level > 0 && !have_zlib()) continue;
        SaveOptions how{.form = form, .compress = level};
        if (form == SnapshotForm::delta) how.parent = &parent;
        Snapshot::save(longer, scratch / "s.stet", how);
        Snapshot::open_with_parents(scratch / "s.stet").check();
        Session again = Snapshot::open(scratch / "s.stet").restore(m, {.session = options(1)});
        expect_same(again, session(290));
      }
    }
    // A delta against a state without blocks holds all blocks, although they have no bytes.
    Session empty(m, options(1));
    Snapshot::save(empty, scratch / "empty.stet");
    const Snapshot nothing = Snapshot::open(scratch / "empty.stet");
    Snapshot::save(longer, scratch / "s.stet", {.form = SnapshotForm::delta, .parent = &nothing});
    Snapshot::open_with_parents(scratch / "s.stet").check();
    Session again =
        Snapshot::open(scratch / "s.stet").restore(m, {.session = options(1), .map = false});
    expect_same(again, session(290));
    EXPECT_EQ(message_of([&] { s.zero_kv({}); }),
              "layers: expected layers with keys and values, found a model without any");
    EXPECT_NE(message_of([&] { s.set_key(0, 0, 3, {}); }).find("0, which is recurrent"),
              std::string::npos);
  }
}

// A session of whole blocks can be restored from one that keeps windows only, and lacks what that had
// dropped. An edit is dropped by a rewind to before it.
TEST(RecurrentWindows, ARewindProcessesWhatWasAnnounced) {
  const auto m = recurrent_model();
  const std::vector<int32_t> ids = random_tokens(*m, 400);
  int64_t told = 0;
  SessionOptions windows = options(1);
  windows.anchor_bytes = 0;
  windows.window = {true, 0, [&](int64_t tokens) { told += tokens; }};
  Session s(m, windows), edited(m, windows);
  s.append(ids);
  edited.append(ids);
  edited.set_array(0, 0, std::vector<float>(s.recurrent().array(0, 0).size(), 3.0f));
  const TemporaryDirectory scratch;
  Snapshot::save(s, scratch / "s.stet", {});
  Session whole = Snapshot::open(scratch / "s.stet").restore(m, {.session = options(1)});
  for (const int64_t to : {121, 90}) {
    Session fresh(m, options(1));
    fresh.append(std::span(ids).first(static_cast<size_t>(to)));
    for (const Session* each : {&s, &edited, &whole}) {
      Session one = each->fork();
      told = 0;
      const int64_t before = recurrent_test_rows();
      EXPECT_EQ(one.rewind_cost(to), to);
      one.rewind(to);
      EXPECT_EQ(recurrent_test_rows() - before, to);
      EXPECT_EQ(told, each == &whole ? 0 : to);
      EXPECT_TRUE(same_bytes(one.recurrent().numbers(), fresh.recurrent().numbers()));
      EXPECT_EQ(digests_of(one).id, digests_of(fresh).id);
      one.append({ids.data(), 30});
      EXPECT_EQ(recurrent_test_rows() - before, to + 30);
    }
  }
}

TEST(WithoutAttention, AnotherTypeOfKeysAndValuesIsNoEdit) {
  for (const Subject& subject : subjects_without_attention()) {
    const auto m = model(subject.directory);
    const std::vector<int32_t> ids = random_tokens(*m, 100);
    SessionOptions as_q8 = options(1);
    as_q8.kv_type = KvType::q8;
    Session s(m, options(1)), expected(m, as_q8);
    for (Session* each : {&s, &expected}) each->append(ids);
    Session rounded(m, with_kv_type(s.state(), KvType::q8), options(1));
    EXPECT_TRUE(rounded.edits().empty());
    EXPECT_EQ(digests_of(rounded).id, digests_of(expected).id) << subject.name;
    EXPECT_EQ(rounded.rewind_cost(64), 0);
    EXPECT_EQ(verify(rounded).text(), "recurrent arrays and logits are equal, byte for byte");
  }
}

TEST(WithoutAttention, VerifySaysWhatIsProved) {
  const auto m = model(subjects_without_attention()[0].directory);
  const std::vector<int32_t> ids = random_tokens(*m, 100);
  const TemporaryDirectory scratch;
  Session s(m, options(1));
  s.append(ids);
  Snapshot::save(s, scratch / "recipe.stet", {.form = SnapshotForm::recipe});
  const VerifyReport report = verify(Snapshot::open(scratch / "recipe.stet"), m, options(1), false);
  EXPECT_EQ(report.text(), "recurrent arrays and logits are equal, by digests");
  EXPECT_TRUE(report.whole());
  EXPECT_EQ(report.of, 0);
  const RecurrentShape& shape = s.recurrent().shape();
  s.set_array(1, 0, std::vector<float>(shape.layers[1][0].count(), 0.5f));
  const std::string rest =
      "; not proved, from position 99 on: recurrent arrays of layer 1 were set after position 99";
  EXPECT_EQ(verify(s).text(),
            "the logits were recomputed from the tokens and are equal, byte for byte" + rest);
  Snapshot::save(s, scratch / "set.stet");
  const Comparison c =
      compare(Snapshot::open(scratch / "recipe.stet"), Snapshot::open(scratch / "set.stet"));
  const auto part = std::ranges::find(c.parts, "recurrent arrays", &Comparison::Part::name);
  ASSERT_NE(part, c.parts.end());
  ASSERT_TRUE(part->difference);
  EXPECT_EQ(part->difference->layer, 1);
  s.append(std::span(ids).first(1));
  EXPECT_EQ(verify(s).text(), "nothing is proved" + rest);
}

// A session on a random path, and what it must be.
class Walk {
 public:
  Walk(std::shared_ptr<const Model> model, uint32_t seed) : m_(std::move(model)), random_(seed) {
    o_ = options(1);
    o_.capacity = 400;
    if (seed % 3 == 1) o_.anchor_bytes = static_cast<int64_t>(draw(4)) * 400;
    if (seed % 4 == 2) o_.window = {true, 0, [](int64_t) {}};
    sessions_.push_back(Session(m_, o_));
  }

  // Takes a random step. Returns a description of the first difference, or "".
  std::string step() {
    Session& s = sessions_[draw(sessions_.size())];
    switch (draw(6)) {
      case 0:
      case 1:
        if (draw(2) == 0) s.anchor_at({s.size() + 1 + static_cast<int64_t>(draw(90))});
        s.append(tokens(s.size()));
        return difference(s, "append");
      case 2:
        return rewind(s);
      case 3:
        if (sessions_.size() < 4) sessions_.push_back(s.fork());
        return "";
      case 4:
        return restore(s);
      default:
        return batch();
    }
  }

 private:
  size_t draw(size_t below) { return random_() % below; }
  std::vector<int32_t> tokens(int64_t at) {
    static constexpr size_t kLengths[] = {1, 2, 30, 63, 64, 65, 100};
    const size_t room = static_cast<size_t>(o_.capacity - at);
    std::vector<int32_t> ids(std::min(kLengths[draw(std::size(kLengths))], room));
    const auto text = static_cast<int64_t>(draw(8) == 0);
    for (size_t i = 0; i < ids.size(); ++i) {
      const int64_t p = at + static_cast<int64_t>(i);
      ids[i] = static_cast<int32_t>((p * p * 31 + p * 7 + text * 101 + 3) % 320);
    }
    return ids;
  }
  std::string rewind(Session& s) {
    const int64_t to = static_cast<int64_t>(draw(static_cast<size_t>(s.size()) + 1));
    const int64_t cost = s.rewind_cost(to), before = s.size();
    int64_t nearest = to == before ? to : 0;
    for (const auto& a : s.anchors().all())
      nearest = a->position <= to ? std::max(nearest, a->position) : nearest;
    s.rewind(to);
    if (!o_.window.only && cost != to - nearest) return "a rewind costs " + std::to_string(cost);
    return difference(s, "rewind from " + std::to_string(before));
  }
  std::string restore(Session& s) {
    const std::string path = scratch_ / (std::to_string(files_++) + ".stet");
    const size_t form = draw(3);
    const std::optional<Snapshot> parent =
        parent_.empty() || form != 1 ? std::nullopt : std::optional(Snapshot::open(parent_));
    SaveOptions how;
    if (parent) how.form = SnapshotForm::delta, how.parent = &*parent;
    if (form == 2) how.form = SnapshotForm::recipe;
    Snapshot::save(s, path, how);
    Snapshot::open_with_parents(path).check();
    if (form == 0) parent_ = path;
    RestoreOptions restore;
    restore.session = o_;
    s = Snapshot::open(path).restore(m_, restore);
    return difference(s, "restore of form " + std::to_string(form));
  }
  std::string batch() {
    std::vector<std::vector<int32_t>> ids;
    std::vector<BatchEntry> entries;
    for (Session& s : sessions_) ids.push_back(tokens(s.size()));
    for (size_t i = 0; i < ids.size(); ++i) {
      if (!ids[i].empty()) entries.push_back({&sessions_[i], ids[i]});
    }
    append(entries);
    for (Session& s : sessions_) {
      if (auto found = difference(s, "batch"); !found.empty()) return found;
    }
    return "";
  }
  std::string difference(Session& s, const std::string& after) {
    const auto [known, fresh] = truth_.try_emplace(s.tokens());
    if (fresh) {
      Session plain(m_, options(1));
      plain.append(s.tokens());
      known->second = digests_of(plain).state;
    }
    if (digests_of(s).state == known->second) return "";
    return after + ", " + std::to_string(s.size()) + " positions";
  }

  std::shared_ptr<const Model> m_;
  std::mt19937 random_;
  SessionOptions o_;
  std::vector<Session> sessions_;
  TemporaryDirectory scratch_;
  std::string parent_;
  int files_ = 0;
  static inline std::map<std::vector<int32_t>, Digest> truth_;
};

// STET_WALKS=N takes N walks, STET_SEED=S begins with seed S.
TEST_F(Recurrent, RandomWalksEqualFreshSessions) {
  const auto setting = [](const char* name, uint32_t otherwise) {
    const char* const text = std::getenv(name);
    return text == nullptr ? otherwise : static_cast<uint32_t>(std::stoul(text));
  };
  const uint32_t first = setting("STET_SEED", 1), count = setting("STET_WALKS", 6);
  for (uint32_t seed = first; seed < first + count; ++seed) {
    Walk walk(m, seed);
    for (int i = 0; i < 14; ++i) ASSERT_EQ(walk.step(), "") << "seed " << seed << ", step " << i;
  }
}

}  // namespace
}  // namespace stet::test::recurrent_tests
