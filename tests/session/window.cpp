// Sessions that keep only windows compute the bits and ids of those that keep everything, and state
// the cost of rewinding.
#include <algorithm>
#include <cstring>
#include <random>

#include "stet/session/splice.hpp"
#include "stet/session/trace.hpp"
#include "stet/snapshot/compare.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/snapshot/verify.hpp"
#include "tests/support/models.hpp"

namespace stet::test::window_tests {
namespace {

SessionOptions windowed(int64_t every = 0, int64_t chunk = 512, KvType type = KvType::f32) {
  SessionOptions o = options(1, STET_DEFAULT_ISA, chunk);
  o.kv_type = type;
  o.window = {true, every, [](int64_t) {}};
  return o;
}

size_t let_go(const Session& s) {
  size_t n = 0;
  for (int64_t b = 0; b < s.kv().blocks(); ++b) n += !s.kv().block_info(b).holds_all();
  return n;
}

// Compares ids, logits, and the bytes of every layer that both hold.
testing::AssertionResult same(Session& a, Session& b) {
  if (a.tokens() != b.tokens()) return testing::AssertionFailure() << "tokens differ";
  if (!same_bytes(a.logits(), b.logits())) return testing::AssertionFailure() << "logits differ";
  const StateDigests x = digests_of(a), y = digests_of(b);
  if (!(x.state == y.state) || x.id != y.id) return testing::AssertionFailure() << "names differ";
  const KvShape& shape = a.kv().shape();
  for (int64_t block = 0; block < a.kv().blocks(); ++block) {
    const KvBlock &p = a.kv().block_info(block), &q = b.kv().block_info(block);
    for (int64_t l = 0; l < shape.layers; ++l) {
      if (!p.holds(l) || !q.holds(l)) continue;
      const size_t at = static_cast<size_t>(l) * shape.layer_bytes(0);
      if (std::memcmp(p.data() + at, q.data() + at, shape.layer_bytes(0)) != 0)
        return testing::AssertionFailure() << "block " << block << ", layer " << l;
    }
  }
  return testing::AssertionSuccess();
}

class Window : public testing::TestWithParam<std::string> {
 protected:
  const std::shared_ptr<const Model> m =
      model(GetParam().starts_with("pocket") ? asset_path(GetParam())
                                             : data_path("models/" + GetParam()));
  const std::vector<int32_t> ids = random_tokens(*m, 508);
  const int64_t window = detail::widest_window(m->config());
  std::span<const int32_t> some(size_t from, size_t to) const {
    return std::span(ids).subspan(from, to - from);
  }
  Session whole(size_t tokens, KvType type = KvType::f32) const {
    SessionOptions o = options(1);
    o.kv_type = type;
    Session s(m, o);
    s.append(some(0, tokens));
    return s;
  }
};

TEST_P(Window, NoBitDependsOnIt) {
  for (const KvType type : {KvType::f32, KvType::q8}) {
    SessionOptions o = options(1);
    o.kv_type = type;
    Session straight(m, o);
    const std::vector<float> logits = all_logits(straight, ids);
    for (const int64_t chunk : {1, 50, 64, 300}) {
      for (const int64_t every : {int64_t{0}, 2 * window + 256}) {
        Session s(m, windowed(every, chunk, type));
        ASSERT_TRUE(same_bytes(all_logits(s, ids), logits)) << chunk;
        ASSERT_TRUE(same(s, straight)) << chunk;
        const auto most = static_cast<size_t>((508 - window - 64) / 64);
        if (every == 0) {
          EXPECT_EQ(let_go(s), most);
        } else {
          EXPECT_LT(let_go(s), most);
          EXPECT_GT(let_go(s), 0u);
        }
      }
    }
  }
}

TEST_P(Window, GoingBackIsExactAndItsCostIsSaid) {
  for (const int64_t every : {int64_t{0}, 2 * window + 256}) {
    for (const int64_t to : {500, 300, 200, 129, 64, 1, 0}) {
      int64_t said = 0;
      SessionOptions o = windowed(every);
      o.window.before_recall = [&](int64_t tokens) { said += tokens; };
      Session s(m, o);
      s.append(ids);
      Session other = s.fork();
      const int64_t cost = s.rewind_cost(to);
      s.rewind(to);
      EXPECT_EQ(said, cost) << to;
      if (every == 0) {
        EXPECT_EQ(cost, to == 0 || to == 500 ? 0 : (to + 63) / 64 * 64);
      }
      s.append(some(static_cast<size_t>(to), 508));
      other.append({&ids[0], 1});
      Session straight = whole(508);
      ASSERT_TRUE(same(s, straight)) << "back to " << to;
      straight.append({&ids[0], 1});
      ASSERT_TRUE(same(other, straight)) << "the fork, " << to;
    }
  }
}

TEST_P(Window, RefusedCallsChangeNothing) {
  SessionOptions o = windowed();
  o.window.before_recall = nullptr;
  Session s(m, o), straight = whole(508);
  s.append(ids);
  EXPECT_EQ(error_of([&] { s.rewind(200); }),
            "argument: window-only: expected positions whose windows are held, or permission to "
            "process 256 tokens again, found block " +
                std::to_string(std::max<int64_t>(0, 200 - window) / 64) + ", which was dropped");
  ASSERT_TRUE(same(s, straight));
  EXPECT_EQ(s.rewind_cost(500), 0);
  s.rewind(500);
  s.append(some(500, 508));
  ASSERT_TRUE(same(s, straight));
}

// A refused request for dropped layers leaves the session and its forks as they were.
TEST_P(Window, RefusedReadsAndEditsAreForgotten) {
  SessionOptions o = windowed();
  o.window.before_recall = nullptr;
  Session s(m, o), straight = whole(508);
  s.append(ids);
  Session other = s.fork();
  const auto refused = [&](Session& of, const std::string& with, const auto& call) {
    EXPECT_NE(error_of([&] { call(of); }).find(with), std::string::npos);
    EXPECT_TRUE(same(s, straight));
    EXPECT_TRUE(same(other, straight));
  };
  const std::string reason = "permission to process";
  refused(s, reason, [](Session& of) { of.scale_kv({}, 2); });
  refused(other, reason, [](Session& of) { of.zero_kv({}); });
  refused(s, "dropped outside its window", [](Session& of) { of.kv().block(0); });
  refused(other, "dropped outside its window", [](Session& of) { of.kv().block(0); });
}

TEST_P(Window, TracesAreThoseOfAWholeSession) {
  SessionOptions o = windowed();
  o.window.before_recall = nullptr;  // a trace needs no dropped window
  Session s(m, o), straight = whole(300);
  s.append(some(0, 300));
  Intervention half;
  half.point = Point::resid_post;
  half.layers = {1};
  half.op = Intervention::Op::scale;
  half.amount = 0.5f;
  half.begin = 310;
  const auto logits = [&](const Session& before) {
    std::vector<float> all;
    Trace(before, some(300, 508)).run(std::span(&half, 1), [&](size_t, std::span<const float> x) {
      all.assign(x.begin(), x.end());
    });
    return all;
  };
  EXPECT_GT(let_go(s), 0u);
  EXPECT_TRUE(same_bytes(logits(s), logits(straight)));
}

// Dropped layers are recomputed where a splice needs them, and the result keeps only windows, too.
TEST_P(Window, SplicesAreThoseOfAWholeSession) {
  Session s(m, windowed()), straight = whole(508);
  s.append(ids);
  const auto spliced = [&](Session& from) {
    const Cut cuts[] = {{&from.state(), 0, 300}, {&from.state(), 100, 170}};
    SessionOptions o = options(1);
    o.window = from.window();
    return Session(m, splice(m->config(), cuts), o);
  };
  Session a = spliced(s), b = spliced(straight);
  EXPECT_GT(let_go(a), 0u);
  ASSERT_TRUE(same(a, b));
  a.rewind(150), b.rewind(150);
  ASSERT_TRUE(same(a, b));
  s.set_before_recall(nullptr);
  EXPECT_NE(error_of([&] { spliced(s); }).find("permission to process"), std::string::npos);
}

TEST_P(Window, RecalledLayersCanBeRead) {
  Session s(m, windowed()), straight = whole(508);
  s.append(ids);
  s.set_before_recall(nullptr);
  EXPECT_NE(error_of([&] { s.recall(0, 1); }).find("permission to process"), std::string::npos);
  s.set_before_recall([](int64_t) {});
  s.recall(0, 64);
  const size_t bytes = s.kv().shape().content_bytes();
  EXPECT_EQ(std::memcmp(s.kv().block(0), straight.kv().block(0), bytes), 0);
  ASSERT_TRUE(same(s, straight));
  EXPECT_EQ(error_of([&] { s.recall(9, 509); }),
            "argument: recall: expected positions in 0..507, found 9..508");
}

TEST_P(Window, PrunesAreThoseOfAWholeSession) {
  for (const bool shift : {false, true}) {
    if (shift && m->config().ropes.empty()) continue;
    for (const auto& [begin, end] :
         std::vector<std::pair<int64_t, int64_t>>{{4, 400}, {64, 128}, {100, 480}, {0, 508}}) {
      int64_t said = 0;
      SessionOptions o = windowed();
      o.window.before_recall = [&](int64_t tokens) { said += tokens; };
      Session s(m, o), straight = whole(508);
      s.append(ids);
      const int64_t cost = s.prune_cost(begin, end, shift);
      s.prune_range(begin, end, shift);
      EXPECT_EQ(said, cost) << begin;
      straight.prune_range(begin, end, shift);
      ASSERT_TRUE(same(s, straight)) << begin << " " << end << " " << shift;
      const std::span<const int32_t> more = shift ? some(0, 300) : some(0, 4);
      const size_t fits = std::min<size_t>(more.size(), static_cast<size_t>(512 - s.size()));
      s.append(more.first(fits));
      straight.append(more.first(fits));
      ASSERT_TRUE(same(s, straight)) << begin << " " << end << " " << shift;
    }
  }
}

// Verification processes all tokens again, including those that a prune inside a window needs.
TEST_P(Window, APrunedStateIsProvedAndReplayedWithoutLeaveToRecall) {
  Session s(m, windowed());
  s.append(some(0, 490));
  s.prune_range(4, 470, false);
  s.append(some(490, 508));
  const VerifyReport proved = verify(s);
  EXPECT_TRUE(proved.whole()) << proved.text();
  SessionOptions asks = windowed();
  asks.window.before_recall = nullptr;
  Session again = replay(m, s.state(), asks);
  EXPECT_TRUE(same(again, s));
  EXPECT_NE(error_of([&] { again.prune_range(1, 3, false); }).find("window-only"),
            std::string::npos);
}

TEST_P(Window, SnapshotsOfEveryFormAreTheSameState) {
  TemporaryDirectory scratch;
  Session s(m, windowed()), straight = whole(400);
  s.append(some(0, 200));
  Snapshot::save(s, scratch / "parent.stet");
  const Snapshot parent = Snapshot::open(scratch / "parent.stet");
  s.append(some(200, 400));
  const std::string full = scratch / "full.stet", plain = scratch / "plain.stet";
  Snapshot::save(straight, plain);
  Snapshot::save(s, full);
  Snapshot::save(s, scratch / "recipe.stet", {.form = SnapshotForm::recipe});
  Snapshot::save(s, scratch / "delta.stet", {.form = SnapshotForm::delta, .parent = &parent});
  std::vector<std::string> names = {"full", "recipe", "delta", "plain"};
  if (have_zlib()) {
    Snapshot::save(s, scratch / "zlib.stet", {.compress = 6});
    names.push_back("zlib");
  }
  const StateDigests expected = digests_of(straight);
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const Snapshot snapshot = Snapshot::open(scratch / (name + ".stet"));
    EXPECT_EQ(snapshot.digests().state, expected.state);
    EXPECT_EQ(snapshot.digests().id, expected.id);
    snapshot.check();
    for (const bool bisect : {false, true}) {
      for (const SessionOptions& o : {options(1), windowed()}) {
        const VerifyReport report = verify(snapshot, m, o, bisect);
        EXPECT_FALSE(report) << report.text();
        EXPECT_TRUE(report.whole()) << report.text();
      }
    }
    for (const bool map : {true, false}) {
      for (const bool window_only : {true, false}) {
        SessionOptions o = windowed();
        o.window.only = window_only;
        Session back = snapshot.restore(m, {.session = o, .map = map, .check = map});
        ASSERT_TRUE(same(back, straight));
        Session longer = whole(508);
        back.append(some(400, 508));
        ASSERT_TRUE(same(back, longer));
        back.rewind(100);
        back.append(some(100, 508));
        ASSERT_TRUE(same(back, longer));
      }
    }
  }
  const auto bits = [](const std::string& path) {
    uint64_t required = 0;
    std::memcpy(&required, read_text(path).data() + 16, 8);
    return required;
  };
  EXPECT_EQ(bits(full), 16u);
  EXPECT_EQ(bits(plain), 0u);
  EXPECT_GT(Snapshot::open(full).count_window_only_blocks(), 0);
  EXPECT_LT(read_text(full).size(), read_text(plain).size());
  const State a = Snapshot::open(full).state(), b = Snapshot::open(plain).state();
  EXPECT_FALSE(first_difference(a, b, 0));
  EXPECT_TRUE(compare(a, b).equal());
}

// Damage in a held block is detected before use, and the block is computed again.
TEST_P(Window, DamageInAHeldBlockIsDetected) {
  TemporaryDirectory scratch;
  Session s(m, windowed()), straight = whole(508);
  s.append(some(0, 500));
  const std::string file = scratch / "s.stet";
  Snapshot::save(s, file);
  std::string bytes = read_text(file);
  bytes[Snapshot::open(file).sections().back().offset + 100] ^= 1;
  write_file(file, bytes);
  EXPECT_NE(error_of([&] { Snapshot::open(file).check(); }), "");
  RestoreReport report;
  Session back = Snapshot::open(file).restore(
      m, {.session = windowed(), .check = true, .heal = true}, &report);
  EXPECT_EQ(report.healed.size(), 1u);
  back.append(some(500, 508));
  ASSERT_TRUE(same(back, straight));
}

// Appends, rewinds, forks, prunes and files in random order, compared with a session that keeps
// everything.
TEST_P(Window, Schedules) {
  TemporaryDirectory scratch;
  std::mt19937 random(7);
  const auto draw = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint32_t>(n));
  };
  for (int run = 0; run < 12; ++run) {
    Session s(m, windowed(run % 3 == 0 ? 2 * window + 256 : 0, 1 + draw(100))),
        straight(m, options(1));
    for (int step = 0; step < 10; ++step) {
      const int64_t room = std::min<int64_t>(s.capacity(), 512) - s.size();
      switch (draw(6)) {
        case 0:
        case 1:
        case 2: {
          const auto count = static_cast<size_t>(std::min(room, 1 + draw(200)));
          const auto from = static_cast<size_t>(draw(200));
          s.append(some(from, from + count));
          straight.append(some(from, from + count));
          break;
        }
        case 3: {
          const int64_t low = s.prunes().empty() ? 0 : straight.state().floor() + 1;
          if (low > s.size()) break;
          const int64_t to = low + draw(s.size() - low + 1);
          s.rewind(to);
          straight.rewind(to);
          break;
        }
        case 4: {
          if (s.size() < 2) break;
          const int64_t begin = draw(s.size()), end = begin + draw(s.size() - begin);
          const bool shift = draw(2) == 0 && !m->config().ropes.empty();
          s.prune_range(begin, end, shift);
          straight.prune_range(begin, end, shift);
          break;
        }
        default: {
          Snapshot::save(s, scratch / "s.stet");
          SessionOptions o = windowed();
          s = Snapshot::open(scratch / "s.stet").restore(m, {.session = o, .map = draw(2) == 0});
        }
      }
      ASSERT_TRUE(same(s, straight)) << "run " << run << ", step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Window,
                         testing::Values("gemma3-tiny", "gemma2-tiny", "mistral-tiny", "olmo3-tiny",
                                         "pocket-gemma3"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(WindowOptions, AreRefusedWhereTheyMeanNothing) {
  const auto llama = model(data_path("models/llama31-tiny")),
             gemma = model(data_path("models/gemma3-tiny"));
  EXPECT_EQ(error_of([&] { Session(llama, windowed()); }),
            "unsupported: window-only: expected a model with sliding-window layers, "
            "found family llama");
  EXPECT_EQ(error_of([&] { Session(gemma, windowed(100)); }),
            "argument: checkpoint-every: expected 0, or at least 272 positions for a window of 8, "
            "found 100");
}

// Edited keys cannot be recomputed, so nothing is evicted from then on. Blocks evicted before the
// edit can be recomputed.
TEST(WindowOptions, AnEditedStateEvictsNothing) {
  const auto m = model(data_path("models/gemma3-tiny"));
  const std::vector<int32_t> ids = random_tokens(*m, 508);
  SessionOptions plain = options(1);
  Session s(m, windowed()), straight(m, plain);
  s.append(std::span(ids).first(300));
  straight.append(std::span(ids).first(300));
  const std::vector<float> x(static_cast<size_t>(m->config().head_dim), 0.5f);
  s.set_key(1, 0, 290, x);
  straight.set_key(1, 0, 290, x);
  const size_t before = let_go(s);
  EXPECT_GT(before, 0u);
  s.append(std::span(ids).subspan(300));
  straight.append(std::span(ids).subspan(300));
  EXPECT_EQ(let_go(s), before);
  ASSERT_TRUE(same(s, straight));
  s.rewind(294), straight.rewind(294);
  ASSERT_TRUE(same(s, straight));
  s.rewind(100), straight.rewind(100);
  ASSERT_TRUE(same(s, straight));
}

}  // namespace
}  // namespace stet::test::window_tests
