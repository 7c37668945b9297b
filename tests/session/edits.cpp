// Keys and values set from outside: shared and mapped blocks keep their bytes, and the state
// records the edit.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "stet/session/splice.hpp"
#include "stet/snapshot/compare.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/snapshot/verify.hpp"
#include "tests/support/models.hpp"

namespace stet::test::edits_tests {
namespace {

class Edits : public testing::TestWithParam<KvType> {
 protected:
  Session session(int64_t tokens, KvType type = KvType::f32) const {
    SessionOptions o = options(1);
    o.capacity = 300;
    o.kv_type = type;
    Session s(m, o);
    s.append(std::span(ids).first(static_cast<size_t>(tokens)));
    return s;
  }
  std::vector<float> numbers() const {
    std::vector<float> x(static_cast<size_t>(m->config().head_dim));
    for (size_t i = 0; i < x.size(); ++i) x[i] = 0.25f * static_cast<float>(i) - 1;
    return x;
  }
  float element(const KvCache& kv, bool key, int64_t layer, int64_t head, int64_t position,
                int64_t d) const {
    const KvShape& s = kv.shape();
    const int64_t slot = position % kBlockPositions;
    const size_t at = key ? s.k_offset(layer, head) +
                                static_cast<size_t>(d * kBlockPositions + slot) * s.element_size()
                          : s.v_offset(layer, head) +
                                static_cast<size_t>(slot * s.head_dim + d) * s.element_size();
    return read_element(s.type, kv.block(position / kBlockPositions) + at);
  }

  std::shared_ptr<const Model> m = model(data_path("models/llama31-tiny"));
  const std::vector<int32_t> ids = random_tokens(*m, 300);
  TemporaryDirectory scratch;
  const std::string file = scratch / "s.stet";
};

TEST_P(Edits, CopyFirstAndAreLogged) {
  Session original = session(150, GetParam());
  const std::vector<std::byte> before = kv_bytes(original.kv());
  Session edited = original.fork();
  edited.set_key(1, 0, 70, numbers());
  edited.set_value(0, 0, 149, numbers());
  EXPECT_EQ(kv_bytes(original.kv()), before);
  EXPECT_TRUE(original.edits().empty());
  EXPECT_EQ(edited.edits(), (std::vector<KvEdit>{{KvEdit::What::key, 150, 0, 70, 1, 0},
                                                 {KvEdit::What::value, 150, 0, 149, 0, 0}}));
  for (int64_t d = 0; d < m->config().head_dim; ++d) {
    EXPECT_EQ(element(edited.kv(), true, 1, 0, 70, d), numbers()[static_cast<size_t>(d)]);
    EXPECT_EQ(element(edited.kv(), false, 0, 0, 149, d), numbers()[static_cast<size_t>(d)]);
  }
  // All other bytes are unchanged.
  std::vector<std::byte> after = kv_bytes(edited.kv());
  size_t differing = 0;
  for (size_t i = 0; i < after.size(); ++i) differing += after[i] != before[i];
  EXPECT_LE(differing, 2 * numbers().size() * edited.kv().shape().element_size());
  original.append({&ids[150], 1});
  edited.append({&ids[150], 1});
  EXPECT_FALSE(same_bytes(original.logits(), edited.logits()));
  EXPECT_FALSE(digests_of(original).state == digests_of(edited).state);
}
INSTANTIATE_TEST_SUITE_P(Types, Edits, testing::Values(KvType::f32, KvType::bf16, KvType::f16),
                         [](const auto& info) { return kv_type_name(info.param); });

TEST_F(Edits, AreKeptInSnapshotsAndCannotBeReplayed) {
  Session s = session(150);
  Snapshot::save(s, file);
  Session mapped = Snapshot::open(file).restore(m, {.session = options(1)});
  const std::string bytes = read_text(file);
  mapped.set_key(1, 0, 3, numbers());
  EXPECT_EQ(read_text(file), bytes);
  EXPECT_TRUE(mapped.take_healed().empty());
  const StateDigests digests = Snapshot::save(mapped, scratch / "e.stet");
  const Snapshot snapshot = Snapshot::open(scratch / "e.stet");
  EXPECT_EQ(snapshot.meta().edits, mapped.edits());
  EXPECT_EQ(read_text(scratch / "e.stet")[16], 4);  // a required feature
  Session back = snapshot.restore(m, {.session = options(1)});
  EXPECT_EQ(back.edits(), mapped.edits());
  EXPECT_EQ(digests_of(back).state, digests.state);
  EXPECT_TRUE(same_state(back, mapped));
  const std::string refusal =
      "argument: edits: expected none: a state whose keys or values were edited cannot be computed "
      "again, found 1";
  EXPECT_EQ(error_of([&] { snapshot.restore(m, {.session = options(1), .replay = true}); }),
            refusal);
  EXPECT_EQ(
      error_of([&] { Snapshot::save(mapped, scratch / "r.stet", {.form = SnapshotForm::recipe}); }),
      "argument: " + scratch / "r.stet" +
          ": form: the state cannot be saved as a recipe, since its tokens do not give it: the key "
          "of position 3, layer 1, head 0 was set");
  EXPECT_EQ(first_difference(s.state(), mapped.state())->what, "edits");
}

TEST_F(Edits, GoWithThePositionsThatARewindDrops) {
  Session s = session(150), plain = session(100);
  s.set_key(0, 0, 120, numbers());
  s.set_key(0, 0, 90, numbers());
  s.rewind(110);
  EXPECT_EQ(s.edits(), (std::vector<KvEdit>{{KvEdit::What::key, 110, 0, 90, 0, 0}}));
  s.rewind(80);
  EXPECT_TRUE(s.edits().empty());
  s.append(std::span(ids).subspan(80, 20));
  EXPECT_TRUE(same_state(s, plain));
  EXPECT_EQ(digests_of(s).state, digests_of(plain).state);
}

TEST_F(Edits, PositionsOutsideOfTheStateAreRefused) {
  Session s = session(150);
  s.prune_range(10, 20, false);
  const auto x = numbers();
  const StateDigests before = digests_of(s);
  EXPECT_EQ(error_of([&] { s.set_key(9, 0, 1, x); }),
            "argument: layer: expected 0.." + std::to_string(m->config().layers - 1) + ", found 9");
  EXPECT_EQ(
      error_of([&] { s.set_key(0, -1, 1, x); }),
      "argument: head: expected 0.." + std::to_string(m->config().kv_heads - 1) + ", found -1");
  EXPECT_EQ(error_of([&] { s.set_value(0, 0, 150, x); }),
            "argument: position: expected 0..149, found 150");
  EXPECT_EQ(error_of([&] { s.set_value(0, 0, 15, x); }),
            "argument: position: expected one that is visible, found 15, which was pruned");
  EXPECT_EQ(error_of([&] { s.set_key(0, 0, 1, std::span(x).first(3)); }),
            "argument: key: expected " + std::to_string(x.size()) + " numbers, found 3");
  std::vector<float> nan = x;
  nan[1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(error_of([&] { s.set_value(0, 0, 1, nan); }),
            "argument: value: expected finite numbers, found nan");
  EXPECT_EQ(digests_of(s).state, before.state);
}

// In q8, only one position's integers and scale change.
TEST_F(Edits, Q8EditsHaveTheirOwnScale) {
  Session original = session(150, KvType::q8), edited = original.fork();
  edited.set_key(1, 0, 70, numbers());
  edited.set_value(0, 0, 149, numbers());
  const std::vector<float> x = numbers();
  float a = 0;
  for (const float f : x) a = std::max(a, std::fabs(f));
  for (const std::vector<float>& found :
       {read_key(edited.state(), 1, 0, 70), read_value(edited.state(), 0, 0, 149)}) {
    for (size_t d = 0; d < x.size(); ++d)
      EXPECT_EQ(found[d], std::nearbyint(x[d] * (127.0f / a)) * (a / 127.0f)) << d;
  }
  const std::vector<std::byte> before = kv_bytes(original.kv()), after = kv_bytes(edited.kv());
  size_t differing = 0;
  for (size_t i = 0; i < after.size(); ++i) differing += after[i] != before[i];
  EXPECT_LE(differing, 2 * (x.size() + 4));
  EXPECT_GT(differing, 0u);

  const State narrow = with_kv_type(session(150).state(), KvType::q8),
              wide = with_kv_type(narrow, KvType::f32);
  for (const int64_t p : {0, 63, 64, 149})
    EXPECT_EQ(read_key(wide, 1, 0, p), read_key(narrow, 1, 0, p));
  EXPECT_EQ(narrow.edits.size(), 1u);
}

// Checks each changed vector of a range, and that everything else is unchanged.
TEST_P(Edits, RangesAreSetScaledAndCopied) {
  Session s = session(150, GetParam()), other = session(0, GetParam());
  other.append(std::vector<int32_t>(ids.rbegin(), ids.rbegin() + 150));
  s.prune_range(61, 62, false);
  const State before = s.state();
  const KvRange range{{1}, {0}, 60, 70, true, false};
  const auto element_of = [&](const State& state, bool key, int64_t l, int64_t h, int64_t p) {
    return key ? read_key(state, l, h, p) : read_value(state, l, h, p);
  };
  const auto expect = [&](const State& changed, const auto& of_range) {
    for (int64_t l = 0; l < m->config().layers; ++l) {
      for (int64_t h = 0; h < m->config().kv_heads; ++h) {
        for (int64_t p = 0; p < 150; ++p) {
          for (const bool key : {true, false}) {
            const bool inside = key && l == 1 && h == 0 && p >= 60 && p < 70 && p != 61;
            const std::vector<float> was = element_of(before, key, l, h, p),
                                     is = element_of(changed, key, l, h, p);
            EXPECT_TRUE(same_bytes(is, inside ? of_range(was, p) : was))
                << l << " " << h << " " << p;
          }
        }
      }
    }
  };
  const auto changed = [&](auto change) {
    Session t = s.fork();
    change(t);
    EXPECT_EQ(t.edits().size(), 1u);
    EXPECT_EQ(t.edits()[0].position, 60);
    EXPECT_EQ(t.edits()[0].end, 70);
    const auto names = t.block_identities(), plain = s.block_identities();
    EXPECT_FALSE(names[0].replayable);
    EXPECT_FALSE(names[1].replayable);
    EXPECT_TRUE(plain[1].replayable);
    return State(t.state());
  };
  const auto rounded = [&](std::vector<float> x) {
    std::vector<std::byte> bytes(x.size() * 4);
    write_elements(GetParam(), x, bytes.data(), 1);
    read_elements(GetParam(), bytes.data(), 1, x);
    return x;
  };
  expect(changed([&](Session& t) { t.zero_kv(range); }),
         [&](const std::vector<float>& x, int64_t) { return std::vector<float>(x.size()); });
  expect(changed([&](Session& t) { t.scale_kv(range, -0.3f); }),
         [&](std::vector<float> x, int64_t) {
           for (float& e : x) e *= -0.3f;
           return rounded(x);
         });
  expect(changed([&](Session& t) { t.set_kv(range, numbers()); }),
         [&](const std::vector<float>&, int64_t) { return rounded(numbers()); });
  std::vector<float> each;
  for (int i = 0; i < 10; ++i) {
    for (const float x : numbers()) each.push_back(x + static_cast<float>(i));
  }
  expect(changed([&](Session& t) { t.set_kv(range, each); }),
         [&](const std::vector<float>& x, int64_t p) {
           const auto from = each.begin() + (p - 60) * static_cast<int64_t>(x.size());
           return rounded({from, from + static_cast<int64_t>(x.size())});
         });
  const State copied = changed([&](Session& t) { t.copy_kv(range, other, 60); });
  expect(copied,
         [&](const std::vector<float>&, int64_t p) { return read_key(other.state(), 1, 0, p); });
  EXPECT_EQ(copied.edits[0].source, sha256_text(digests_of(other).id));
  // Keys from another position are rotated as in a shift; values are copied.
  Session moved = s.fork();
  moved.copy_kv({{}, {}, 62, 72, true, true}, other, 12);
  const State rotated =
      splice(m->config(), std::vector<Cut>{{&s.state(), 0, 61}, {&other.state(), 11, 21}});
  for (int64_t p = 62; p < 71; ++p) {
    EXPECT_TRUE(
        same_bytes(read_value(moved.state(), 0, 1, p), read_value(other.state(), 0, 1, p - 50)));
    EXPECT_TRUE(same_bytes(read_key(moved.state(), 0, 1, p), read_key(rotated, 0, 1, p)));
  }
}

TEST_F(Edits, RangesOutsideOfTheStateAreRefused) {
  Session s = session(100), other = session(50);
  const StateDigests before = digests_of(s);
  const auto refused = [&](const std::string& words, auto change) {
    EXPECT_NE(error_of([&] { change(s); }).find(words), std::string::npos)
        << words << ": " << error_of([&] { change(s); });
    EXPECT_EQ(digests_of(s).id, before.id);
  };
  refused("layers: expected 0..", [](Session& t) { t.zero_kv({{0, 9}, {}, 0, -1, true, true}); });
  refused("layers: expected each once", [](Session& t) {
    t.zero_kv({{1, 1}, {}, 0, -1, true, true});
  });
  refused("heads: expected 0..", [](Session& t) { t.zero_kv({{}, {7}, 0, -1, true, true}); });
  refused("positions: expected positions in 0..99, found 5..100", [](Session& t) {
    t.zero_kv({{}, {}, 5, 101, true, true});
  });
  refused("keys, values or both", [](Session& t) { t.zero_kv({{}, {}, 0, -1, false, false}); });
  refused("factor: expected a finite number", [](Session& t) { t.scale_kv({}, NAN); });
  refused("finite numbers", [](Session& t) { t.scale_kv({}, 3e38f); });
  refused("values: expected", [](Session& t) { t.set_kv({}, std::vector<float>(3)); });
  refused("from position: expected 0..0, found 1", [&](Session& t) {
    t.copy_kv({{}, {}, 0, 50, true, true}, other, 1);
  });
  Session stranger(model(data_path("models/qwen3-tiny")), options(1));
  stranger.append(std::span(ids).first(10));
  refused("model: expected", [&](Session& t) {
    t.copy_kv({{}, {}, 0, 5, true, true}, stranger, 0);
  });
}

TEST_F(Edits, PrefixesAreSplicedOntoOthers) {
  Session a = session(100), b = session(0);
  b.append(std::vector<int32_t>(ids.rbegin(), ids.rbegin() + 90));
  const ModelConfig& c = m->config();
  // A prefix alone is not an edit but a rewound state.
  const State front = splice(c, std::vector<Cut>{{&a.state(), 0, 70}});
  Session rewound = a.fork();
  rewound.rewind(70);
  EXPECT_TRUE(front.edits.empty());
  EXPECT_EQ(kv_bytes(front.kv), kv_bytes(rewound.kv()));
  // Positions that stay keep their bytes. Positions that move are rotated as in a shift.
  const State joined = splice(c, std::vector<Cut>{{&a.state(), 0, 70}, {&b.state(), 20, 90}});
  EXPECT_EQ(joined.size(), 140);
  EXPECT_EQ(joined.tokens[69], ids[69]);
  EXPECT_EQ(joined.tokens[70], b.tokens()[20]);
  EXPECT_EQ(joined.edits.size(), 1u);
  EXPECT_EQ(joined.edits[0].position, 70);
  EXPECT_EQ(joined.edits[0].end, 140);
  EXPECT_EQ(replay_limit(joined)->position, 70);
  Session shifted = b.fork();
  shifted.prune_range(0, 20, true);
  Session zero(m, splice(c, std::vector<Cut>{{&b.state(), 20, 90}}), options(1));
  EXPECT_EQ(kv_bytes(zero.kv()), kv_bytes(shifted.kv()));
  const auto names = block_identities(joined);
  EXPECT_EQ(names[0], a.block_identities()[0]);
  EXPECT_FALSE(names[1].replayable);
  // Deviations from the true state are zero before the seam and nonzero after it.
  Session s(m, joined, options(1));
  EXPECT_EQ(s.logits().size(), static_cast<size_t>(c.vocab_size));
  Session truth = truth_of(m, joined, options(1));
  const Comparison beside = compare(truth.state(), s.state());
  EXPECT_EQ(beside.equal_positions, 70);
  EXPECT_GT(beside.layers.back().keys.largest, 0);
  EXPECT_GT(*beside.a_from_b, 0);
  // The first layer's values depend only on their own token; its keys differ by the rotation's
  // rounding.
  EXPECT_LT(beside.layers[0].keys.largest, 1e-4);
  EXPECT_EQ(beside.layers[0].values.largest, 0);
  // The spliced state continues, and survives saving and restoring.
  Snapshot::save(s, file);
  const Snapshot snapshot = Snapshot::open(file);
  EXPECT_EQ(snapshot.meta().edits, joined.edits);
  Session back = snapshot.restore(m, {.session = options(1)});
  EXPECT_EQ(digests_of(back).id, digests_of(s).id);
  EXPECT_FALSE(verify(snapshot, m, options(1), false, nullptr));
  // Flips a bit of a key before the edit, and one after it, which the tokens do not reproduce.
  const std::string whole = read_text(file);
  for (const size_t block : {size_t{0}, size_t{1}}) {
    std::string damaged = whole;
    damaged[65536 + block * s.kv().shape().block_bytes() + 77] ^= 1;
    write_file(file, damaged);
    for (const bool bisect : {false, true}) {
      const auto found = verify(Snapshot::open(file), m, options(1), bisect, nullptr);
      ASSERT_TRUE(found) << block;
      EXPECT_NE(found->text().find("block " + std::to_string(block)), std::string::npos)
          << found->text();
    }
  }
  write_file(file, whole);
  const int32_t next[] = {ids[7]};
  back.append(next);
  s.append(next);
  EXPECT_TRUE(same_state(back, s));
  s.rewind(70);
  EXPECT_TRUE(s.edits().empty());
  EXPECT_EQ(kv_bytes(s.kv()), kv_bytes(rewound.kv()));

  EXPECT_NE(error_of([&] { splice(c, {}); }).find("cuts: expected at least one"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              splice(c, std::vector<Cut>{{&a.state(), 0, 101}});
            }).find("cuts[0]"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              splice(c, std::vector<Cut>(4, Cut{&a.state(), 0, 100}));
            }).find("capacity: tokens"),
            std::string::npos);
  const Session half = session(20, KvType::f16);
  Session h = half.fork();
  EXPECT_NE(error_of([&] {
              splice(c, std::vector<Cut>{{&a.state(), 0, 10}, {&h.state(), 10, 20}});
            }).find("cuts[1]: kv type"),
            std::string::npos);
  b.prune_range(30, 31, false);
  EXPECT_NE(error_of([&] {
              splice(c, std::vector<Cut>{{&b.state(), 20, 40}});
            }).find("30, which"),
            std::string::npos);
}

TEST_F(Edits, KeysWithoutRotaryPositionsStayWhereTheyAre) {
  const auto gpt2 = model(data_path("models/gpt2-tiny"));
  Session a(gpt2, options(1));
  a.append(std::span(ids).first(20));
  EXPECT_NE(error_of([&] {
              splice(gpt2->config(), std::vector<Cut>{{&a.state(), 3, 20}});
            }).find("unsupported: positions"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              a.copy_kv({{}, {}, 0, 5, true, true}, a, 1);
            }).find("unsupported"),
            std::string::npos);
  a.copy_kv({{0}, {}, 0, 5, true, true}, a, 0);
  EXPECT_EQ(a.edits().size(), 2u);
}

TEST_F(Edits, AnotherTypeRoundsOnceAndWideningIsExact) {
  Session s = session(150);
  s.prune_range(3, 9, false);
  for (const KvType type : {KvType::bf16, KvType::f16}) {
    const State narrow = with_kv_type(s.state(), type);
    EXPECT_EQ(narrow.edits, (std::vector<KvEdit>{{KvEdit::What::kv_type, 150, 1, -1, -1, -1}}));
    for (int64_t p : {0, 5, 64, 149}) {
      for (int64_t d = 0; d < m->config().head_dim; ++d) {
        std::byte rounded[4];
        const float x = element(s.kv(), true, 1, 0, p, d);
        write_elements(type, {&x, 1}, rounded, 1);
        EXPECT_EQ(element(narrow.kv, true, 1, 0, p, d), read_element(type, rounded));
      }
    }
    const State wide = with_kv_type(narrow, KvType::f32), again = with_kv_type(wide, type, 200);
    EXPECT_EQ(kv_bytes(again.kv), kv_bytes(narrow.kv));
    EXPECT_EQ(again.kv.capacity(), 200);
    EXPECT_EQ(visible_positions(again.kv), 144);
  }
  EXPECT_TRUE(with_kv_type(s.state(), KvType::f32).edits.empty());
}

}  // namespace
}  // namespace stet::test::edits_tests
