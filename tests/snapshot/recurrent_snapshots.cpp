// Snapshots of models with recurrent layers. Live arrays and anchors are saved. Damage to them is
// found and named, and heals where tokens reproduce the arrays.
#include <cstring>
#include <filesystem>
#include <functional>

#include "stet/snapshot/compare.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/snapshot/verify.hpp"
#include "tests/support/models.hpp"
#include "tests/support/recurrent_family.hpp"

namespace stet::test::recurrent_snapshots_tests {
namespace {

class RecurrentSnapshots : public testing::Test {
 protected:
  Session session(int64_t tokens) const {
    SessionOptions o = options(1);
    o.capacity = 700;
    Session s(m, o);
    s.anchor_at({100});
    s.append(part(0, tokens));
    return s;
  }
  std::span<const int32_t> part(int64_t begin, int64_t end) const {
    return std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  }
  RestoreOptions how() const { return {.session = options(1)}; }
  Session restored(const std::string& path) const { return Snapshot::open(path).restore(m, how()); }

  static std::vector<int64_t> anchors(const Session& s) {
    std::vector<int64_t> at;
    for (const auto& a : s.anchors().all()) at.push_back(a->position);
    return at;
  }
  static void expect_same(Session& a, Session& b) {
    EXPECT_TRUE(same_bytes(a.recurrent().numbers(), b.recurrent().numbers()));
    EXPECT_TRUE(same_state(a, b));
    EXPECT_EQ(digests_of(a).state, digests_of(b).state);
    EXPECT_EQ(digests_of(a).id, digests_of(b).id);
  }
  // Changes one byte of a section, counted from its beginning, or from its end if negative.
  static void harm(const std::string& path, const std::string& section, int64_t at) {
    const Snapshot s = Snapshot::open(path);
    for (const SnapshotSection& found : s.sections()) {
      if (found.name != section) continue;
      std::string bytes = read_text(path);
      bytes[static_cast<size_t>(static_cast<int64_t>(found.offset) +
                                (at < 0 ? static_cast<int64_t>(found.size) + at : at))] ^= 1;
      write_file(path, bytes);
      return;
    }
    FAIL() << section;
  }

  std::shared_ptr<const Model> m = recurrent_model();
  const std::vector<int32_t> ids = random_tokens(*m, 600);
  TemporaryDirectory scratch;
  const std::string file = scratch / "s.stet", next = scratch / "t.stet";
};

TEST_F(RecurrentSnapshots, ASessionAndItsAnchorsComeBack) {
  Session s = session(300);
  Snapshot::save(s, file);
  const Snapshot snapshot = Snapshot::open(file);
  EXPECT_EQ(snapshot.version(), 4u);
  EXPECT_EQ(snapshot.file()->arrays.size(), 2u);
  EXPECT_EQ(snapshot.check().arrays, 2u + 3u);
  Session again = restored(file);
  EXPECT_EQ(anchors(again), (std::vector<int64_t>{100, 192, 256, 300}));
  expect_same(again, s);
  EXPECT_EQ(again.rewind_cost(130), 30);
  again.rewind(130);
  Session fresh = session(130);
  expect_same(again, fresh);
  again.append(part(130, 400));
  Session longer = session(400);
  expect_same(again, longer);
}

TEST_F(RecurrentSnapshots, ADeltaLeavesOutAnchorsOfItsParent) {
  Session s = session(300);
  Snapshot::save(s, file);
  s.append(part(300, 420));
  const Snapshot parent = Snapshot::open(file);
  Snapshot::save(s, next, {.form = SnapshotForm::delta, .parent = &parent});
  const Snapshot delta = Snapshot::open(next);
  std::vector<std::pair<int64_t, bool>> found;
  for (const AnchorEntry& a : delta.file()->anchors) found.emplace_back(a.position, a.in_parent);
  EXPECT_EQ(found, (std::vector<std::pair<int64_t, bool>>{
                       {100, true}, {300, true}, {320, false}, {384, false}}));
  Session again = restored(next);
  expect_same(again, s);
  EXPECT_EQ(anchors(again), (std::vector<int64_t>{100, 300, 320, 384, 420}));
  again.rewind(301);
  Session fresh = session(301);
  expect_same(again, fresh);
}

// A parent's anchor that was computed over rounded keys and values has other arrays, although its
// tokens are the same.
TEST_F(RecurrentSnapshots, ADeltaOfARoundedStateHasItsOwnAnchors) {
  const auto lfm = model(data_path("models/lfm2-tiny"));
  SessionOptions o = options(1), f32 = o;
  o.kv_type = KvType::q8;
  Session native(lfm, o), exact(lfm, f32);
  for (Session* s : {&native, &exact}) {
    s->anchor_at({100});
    s->append(part(0, 300));
  }
  Snapshot::save(native, file);
  const Snapshot parent = Snapshot::open(file);
  Session rounded(lfm, with_kv_type(exact.state(), KvType::q8), o);
  Snapshot::save(rounded, next, {.form = SnapshotForm::delta, .parent = &parent});
  const Snapshot delta = Snapshot::open(next);
  for (const AnchorEntry& a : delta.file()->anchors) {
    EXPECT_TRUE(a.by_content) << a.position;
    EXPECT_FALSE(a.in_parent) << a.position;
  }
  Session again = delta.restore(lfm, {.session = o});
  for (const int64_t to : {256, 100}) {
    again.rewind(to);
    Session fresh(lfm, f32), other(lfm, o);
    for (Session* s : {&fresh, &other}) s->append(part(0, to));
    EXPECT_TRUE(same_bytes(again.recurrent().numbers(), fresh.recurrent().numbers())) << to;
    EXPECT_FALSE(same_bytes(again.recurrent().numbers(), other.recurrent().numbers())) << to;
  }
}

// After its last token, an edited parent's arrays differ from those that its tokens give.
TEST_F(RecurrentSnapshots, ADeltaAgainstAnEditedParentHasItsOwnAnchors) {
  Session edited = session(200);
  State set = edited.state();
  set_array(set, 2, 0, std::vector<float>(30, 7));
  Session parent_session(m, set, options(1));
  Snapshot::save(parent_session, file);
  const Snapshot parent = Snapshot::open(file);
  Session s = session(200);
  s.keep_anchor();
  s.append(part(200, 300));
  Snapshot::save(s, next, {.form = SnapshotForm::delta, .parent = &parent});
  std::vector<std::pair<int64_t, bool>> found;
  const Snapshot delta = Snapshot::open(next);
  for (const AnchorEntry& a : delta.file()->anchors) found.emplace_back(a.position, a.in_parent);
  EXPECT_EQ(found, (std::vector<std::pair<int64_t, bool>>{
                       {100, true}, {192, true}, {200, false}, {256, false}}));
  Session again = restored(next);
  again.rewind(200);
  Session fresh = session(200);
  expect_same(again, fresh);
}

TEST_F(RecurrentSnapshots, ARecipeProvesTheArraysItComputes) {
  Session s = session(200);
  Snapshot::save(s, file, {.form = SnapshotForm::recipe});
  Session again = restored(file);
  expect_same(again, s);
  EXPECT_EQ(Snapshot::open(file).check().arrays, 0u);
}

TEST_F(RecurrentSnapshots, DamageIsNamedByLayerAndHealed) {
  Session s = session(300);
  Snapshot::save(s, file);
  harm(file, "STATE", -1);
  const Snapshot snapshot = Snapshot::open(file);
  const std::string text =
      file + ": recurrent arrays, layer 2: its bytes are not those that were saved";
  for (const auto& refusal :
       {message_of([&] { snapshot.check(); }), message_of([&] { snapshot.restore(m, how()); })})
    EXPECT_EQ(refusal, text + "; stet resume --heal computes them again");
  RestoreOptions heal = how();
  heal.heal = true;
  RestoreReport report;
  Session healed = snapshot.restore(m, heal, &report);
  EXPECT_EQ(report.healed_layers, std::vector<int64_t>{2});
  EXPECT_EQ(report.recomputed, 300 - 256);
  expect_same(healed, s);
}

TEST_F(RecurrentSnapshots, DamageOfTheIndexIsFoundWhenOpening) {
  Session s = session(300);
  for (const char* section : {"STATE", "ANCHORS"}) {
    Snapshot::save(s, file);
    harm(file, section, 3);
    EXPECT_NE(message_of([&] { Snapshot::open(file); }).find(std::string(section) + ": "),
              std::string::npos);
  }
}

TEST_F(RecurrentSnapshots, DamagedAnchorsAreNamedAndLeftOut) {
  Session s = session(300);
  Snapshot::save(s, file);
  harm(file, "ANCHORS", -100);  // within the last anchor
  const Snapshot snapshot = Snapshot::open(file);
  EXPECT_NE(message_of([&] { snapshot.check(); })
                .find("anchor at position 256: its bytes are not those that were saved; --heal "
                      "does without it"),
            std::string::npos);
  for (const bool bisect : {false, true}) {
    const VerifyReport found = verify(snapshot, m, options(1), bisect);
    EXPECT_FALSE(found.whole());
    EXPECT_EQ(found.text(),
              "different: position 255, recurrent arrays of the anchor at position 256: expected "
              "the bytes that were saved, found others");
  }
  RestoreOptions heal = how();
  heal.heal = true;
  Session healed = snapshot.restore(m, heal);
  EXPECT_EQ(anchors(healed), (std::vector<int64_t>{100, 192, 300}));
  expect_same(healed, s);
}

// Anchors of a mapped file are read when they are first used.
TEST_F(RecurrentSnapshots, ADamagedAnchorIsLikeNoneWhenItIsUsed) {
  Session s = session(300);
  Snapshot::save(s, file);
  harm(file, "ANCHORS", -100);  // within the anchor at 256
  Session again = restored(file);
  EXPECT_EQ(anchors(again), (std::vector<int64_t>{100, 192, 256, 300}));
  EXPECT_EQ(again.rewind_cost(260), 260 - 192);
  const VerifyReport proved = verify(again);
  EXPECT_TRUE(proved.whole()) << proved.text();
  EXPECT_EQ(proved.anchors, 3);
  Snapshot::save(again, next);
  const Snapshot saved = Snapshot::open(next);
  EXPECT_EQ(saved.check().arrays, 2u + 2u);
  again.rewind(260);
  s.rewind(260);
  expect_same(again, s);
  RestoreOptions now = how();
  now.check = true;
  EXPECT_NE(
      message_of([&] { Snapshot::open(file).restore(m, now); }).find("anchor at position 256"),
      std::string::npos);
}

TEST_F(RecurrentSnapshots, ADamagedAnchorThatTokensDoNotGiveIsRefusedWhenItIsUsed) {
  Session s = session(150);
  s.set_key(1, 0, 70, std::vector<float>(static_cast<size_t>(m->config().head_dim), 0.5f));
  s.append(part(150, 170));
  s.keep_anchor();
  s.append(part(170, 190));
  Snapshot::save(s, file);
  harm(file, "ANCHORS", -100);  // within the anchor at 170, which is named by its bytes
  const std::string refused =
      "anchor at position 170: its bytes are not those that were saved, "
      "and tokens do not give them";
  Session again = restored(file);
  EXPECT_NE(message_of([&] { Snapshot::save(again, next); }).find(refused), std::string::npos);
  expect_same(again, s);
  again.rewind(170);  // from the anchor at the edit
  Session rewound = s.fork();
  rewound.rewind(170);
  expect_same(again, rewound);
  Snapshot::save(s, next);
  Session cut = restored(next);
  std::filesystem::resize_file(next, 4096);
  EXPECT_EQ(message_of([&] { cut.rewind(170); }),
            next +
                ": anchor at position 150: its bytes are not those that were saved, and tokens do "
                "not give them");
}

// A file that is cut while it is mapped reads as zeros.
TEST_F(RecurrentSnapshots, AnchorsOfACutFileAreLikeNone) {
  Session s = session(300);
  Snapshot::save(s, file);
  Session again = restored(file), other = again.fork();
  std::filesystem::resize_file(file, 4096);
  EXPECT_EQ(again.rewind_cost(130), 130);
  EXPECT_EQ(other.rewind_cost(260), 260);
}

TEST_F(RecurrentSnapshots, VerifyFindsADamagedAnchorOfAnyFile) {
  const std::string parent = scratch / "parent.stet";
  Session s = session(300);
  Snapshot::save(s, parent);
  s.set_key(1, 0, 290, std::vector<float>(static_cast<size_t>(m->config().head_dim), 0.5f));
  s.anchor_at({350});
  s.append(part(300, 420));
  const auto save = [&] {
    const Snapshot opened = Snapshot::open(parent);
    Snapshot::save(s, file, {.form = SnapshotForm::delta, .parent = &opened});
  };
  save();
  for (const bool bisect : {false, true}) {
    EXPECT_FALSE(verify(Snapshot::open(file), m, options(1), bisect));
  }
  const std::string sound = read_text(parent);
  harm(parent, "ANCHORS", 261);  // within the anchor at position 100, which the delta needs
  for (const bool bisect : {false, true}) {
    EXPECT_TRUE(verify(Snapshot::open(file), m, options(1), bisect)) << bisect;
  }
  write_file(parent, sound);
  const VerifyReport sound_again = verify(Snapshot::open(file), m, options(1), false);
  EXPECT_FALSE(sound_again) << sound_again.text();
}

TEST_F(RecurrentSnapshots, DamagedBlocksHealFromAnchors) {
  Session s = session(300);
  Snapshot::save(s, file);
  harm(file, "KV", static_cast<int64_t>(s.kv().shape().block_bytes()) * 3 + 5);
  RestoreOptions heal = how();
  heal.heal = true;
  RestoreReport report;
  Session healed = Snapshot::open(file).restore(m, heal, &report);
  EXPECT_EQ(report.healed, std::vector<int64_t>{3});
  EXPECT_EQ(report.recomputed, 64);
  expect_same(healed, s);
}

TEST_F(RecurrentSnapshots, VerifyProvesTheArraysByReplay) {
  Session s = session(200);
  Snapshot::save(s, file);
  const Snapshot snapshot = Snapshot::open(file);
  const VerifyReport report = verify(snapshot, m, options(1), false);
  EXPECT_TRUE(report.whole()) << report.text();
  EXPECT_TRUE(verify(s).whole());
  // A state whose tokens are not those of its arrays.
  State lying = s.state();
  Session other = session(199);
  lying.recurrent = other.recurrent();
  Session liar(m, lying, options(1));
  const VerifyReport found = verify(liar);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->what, "recurrent arrays");
  EXPECT_EQ(found->layer, 0);
  const std::optional<Difference> compared = first_difference(s.state(), lying);
  ASSERT_TRUE(compared);
  EXPECT_EQ(compared->layer, 0);
  EXPECT_EQ(compared->what, "state");
}

TEST_F(RecurrentSnapshots, VerifyProvesAnchors) {
  Session s = session(130);
  s.append(part(130, 200));
  s.keep_anchor();  // holds logits, where those of appends hold a row of hidden state
  s.append(part(200, 210));
  const VerifyReport proved = verify(s);
  EXPECT_TRUE(proved.whole()) << proved.text();
  EXPECT_EQ(proved.anchors, static_cast<int64_t>(s.anchors().size()));
  const Session other = session(99);
  for (const auto& real : s.anchors().all()) {
    for (const bool last : {false, true}) {  // which part to forge: `last` or the arrays
      if (last && real->last == nullptr) continue;
      Anchor forged = *real;
      if (last) {
        forged.last = std::make_shared<std::vector<float>>(*real->last);
        forged.last->back() += 1;
      } else {
        forged.arrays = other.recurrent().share();
      }
      State lying = s.state();
      lying.anchors = {};
      for (const auto& a : s.anchors().all()) lying.anchors.add(a == real ? forged : *a);
      Session liar(m, lying, options(1));
      Snapshot::save(liar, file);  // with the right digest of the wrong bytes
      EXPECT_NO_THROW(Snapshot::open(file).check());
      for (const VerifyReport& found :
           {verify(liar), verify(Snapshot::open(file), m, options(1), false)}) {
        ASSERT_TRUE(found) << real->position;
        EXPECT_EQ(found->position, real->position - 1);
        EXPECT_TRUE(
            found->what.ends_with(" of the anchor at position " + std::to_string(real->position)))
            << found->what;
      }
    }
  }
}

TEST_F(RecurrentSnapshots, TheIdOfAnEditedStateCoversTheArrays) {
  const std::vector<float> x(static_cast<size_t>(m->config().head_dim), 0.5f);
  Session a = session(150);
  a.set_key(1, 0, 70, x);
  State other = a.state();
  Session shorter = session(149);
  other.recurrent = shorter.recurrent();
  EXPECT_NE(state_id(a.state()), state_id(other));
  a.append(part(150, 290));
  Snapshot::save(a, file);
  EXPECT_NO_THROW(Snapshot::open(file).check());
  Session again = restored(file);
  expect_same(again, a);
  Session rewound = a.fork();
  rewound.rewind(150);  // an anchor that is named by its content
  again.rewind(150);
  expect_same(again, rewound);
  harm(file, "STATE", -1);
  RestoreOptions heal = how();
  heal.heal = true;
  EXPECT_NE(message_of([&] { Snapshot::open(file).restore(m, heal); })
                .find("recurrent arrays, layer 2: its bytes are not those that were saved, and "
                      "tokens do not give them"),
            std::string::npos);
}

TEST_F(RecurrentSnapshots, AnchorsAreInNeitherDigestNorId) {
  Session s = session(300), plain(m, options(1));
  plain.append(part(0, 300));
  EXPECT_NE(anchors(s), anchors(plain));
  EXPECT_EQ(digests_of(s).state, digests_of(plain).state);
  EXPECT_EQ(digests_of(s).id, digests_of(plain).id);
}

}  // namespace
}  // namespace stet::test::recurrent_snapshots_tests
