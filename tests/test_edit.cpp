// Keys and values that are set from outside: shared and mapped blocks stay as they are, and the
// state says what was done.
#include <cstring>

#include "scratch.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/snapshot/verify.hpp"
#include "support.hpp"

namespace stet::test {
namespace {

using stet_test::error_of;

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
  stet_test::ScratchDir scratch;
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
  // Nothing else has changed.
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
  const std::string bytes = read_text_file(file, SIZE_MAX);
  mapped.set_key(1, 0, 3, numbers());
  EXPECT_EQ(read_text_file(file, SIZE_MAX), bytes);
  EXPECT_TRUE(mapped.take_healed().empty());
  const StateDigests digests = Snapshot::save(mapped, scratch / "e.stet");
  const Snapshot snapshot = Snapshot::open(scratch / "e.stet");
  EXPECT_EQ(snapshot.meta().edits, mapped.edits());
  EXPECT_EQ(read_text_file(scratch / "e.stet", SIZE_MAX)[16], 4);  // a required feature
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
          ": form: expected full or delta (its tokens do not give this state: the key of "
          "position 3, layer 1, head 0 was set), found recipe");
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

TEST_F(Edits, RefuseWhatIsNotThere) {
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

// Of q8: one position's integers and scale become others, and nothing else.
TEST_F(Edits, OfQ8RoundToAScaleOfTheirOwn) {
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
}  // namespace stet::test
