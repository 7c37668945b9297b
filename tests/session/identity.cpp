// Identities of blocks and states: equal ids mean equal bytes, and ids do not depend on the
// history.
#include "stet/session/identity.hpp"

#include <algorithm>
#include <optional>

#include "src/base/sha256_portable.hpp"
#include "src/blas/openblas.hpp"
#include "stet/model/product.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/snapshot/verify.hpp"
#include "tests/support/models.hpp"
#include "tests/support/snapshot_image.hpp"

namespace stet::test::identity_tests {
namespace {

class Identity : public testing::Test {
 protected:
  Session session(int64_t tokens, KvType type = KvType::f32, Contract contract = Contract::f32,
                  int64_t chunk = 512) const {
    SessionOptions o = options(1, STET_DEFAULT_ISA, chunk, contract);
    o.capacity = 400;
    o.kv_type = type;
    Session s(m, o);
    if (tokens > 0) s.append(std::span(ids).first(static_cast<size_t>(tokens)));
    return s;
  }
  static std::vector<BlockIdentity> names(Session& s) { return s.block_identities(); }
  static Sha256 id(Session& s) { return state_id(s.state(), 1); }
  static std::vector<bool> given(Session& s) {
    std::vector<bool> all;
    for (const BlockIdentity& b : names(s)) all.push_back(b.replayable);
    return all;
  }

  std::shared_ptr<const Model> m = model(data_path("models/llama32-tiny-bf16"));
  const std::vector<int32_t> ids = random_tokens(*m, 400);
  TemporaryDirectory scratch;
  const std::string file = scratch / "s.stet";
};

// A second implementation of the specification.
struct Bytes {
  std::string text;
  Bytes& put(std::string_view s) {
    text += s;
    return *this;
  }
  Bytes& put(const Sha256& h) {
    return put(std::string_view(reinterpret_cast<const char*>(h.bytes.data()), 32));
  }
  Bytes& put(std::span<const int32_t> ids) {
    return put(std::string_view(reinterpret_cast<const char*>(ids.data()), ids.size_bytes()));
  }
  Bytes& number(uint64_t n, size_t width = 8) { return put(le(n, width)); }
  Bytes& string(const std::string& s) { return number(s.size()).put(s); }
  Sha256 hash() const {
    PortableSha256 h;
    h.add(std::as_bytes(std::span(text)));
    return h.result();
  }
};

TEST_F(Identity, FollowsTheDefinitionInTheHeader) {
  Session s = session(150);
  const Sha256 start = Bytes()
                           .put("stet blocks 1\n")
                           .string("f32")
                           .number(1, 4)
                           .string("f32")
                           .number(1, 4)
                           .string(m->fingerprint())
                           .hash();
  const auto fill = [&](const Sha256& link, size_t from, size_t to) {
    return Bytes().put("B").put(link).put(std::span(ids).subspan(from, to - from)).hash();
  };
  const Sha256 first = fill(start, 0, 64), second = fill(first, 64, 128);
  EXPECT_EQ(names(s), (std::vector<BlockIdentity>{{first, true}, {second, true}}));

  s.prune_range(70, 75, true);
  const std::span<const int32_t> removed = std::span(ids).subspan(70, 5);
  const Sha256 pruned = Bytes()
                            .put("P")
                            .put(second)
                            .number(22)
                            .put(std::span(ids).subspan(128, 22))
                            .number(150)
                            .number(70)
                            .number(75)
                            .number(1, 1)
                            .put(removed)
                            .hash();
  EXPECT_EQ(names(s), (std::vector<BlockIdentity>{
                          {first, true}, {Bytes().put("T").put(pruned).number(1).hash(), true}}));
  s.append(std::span(ids).subspan(150, 50));
  const Sha256 third = fill(pruned, 150, 197);
  EXPECT_EQ(names(s).back(), (BlockIdentity{third, true}));

  s.prune_range(10, 20, false);
  const Sha256 again = Bytes()
                           .put("P")
                           .put(third)
                           .number(3)
                           .put(std::span(ids).subspan(197, 3))
                           .number(195)
                           .number(10)
                           .number(20)
                           .number(0, 1)
                           .hash();
  EXPECT_EQ(names(s)[0].id, Bytes().put("T").put(again).number(0).hash());
  EXPECT_EQ(names(s)[1].id, Bytes().put("T").put(pruned).number(1).hash());
  EXPECT_EQ(names(s)[2].id, third);

  const KvShape& shape = s.kv().shape();
  Session edited = session(70);
  edited.set_key(0, 0, 3, std::vector<float>(static_cast<size_t>(shape.head_dim), 0.5f));
  const std::string content(reinterpret_cast<const char*>(edited.kv().block(0)),
                            shape.content_bytes());
  const auto number = [](int64_t n) { return static_cast<uint64_t>(n); };
  EXPECT_EQ(names(edited), (std::vector<BlockIdentity>{{Bytes()
                                                            .put("stet block content 1\n")
                                                            .string("f32")
                                                            .number(number(shape.layers))
                                                            .number(number(shape.kv_heads))
                                                            .number(number(shape.head_dim))
                                                            .put(content)
                                                            .hash(),
                                                        false}}));
}

TEST_F(Identity, DoesNotDependOnHowTheStateCameAbout) {
  Session whole = session(300);
  const std::vector<BlockIdentity> expected = names(whole);
  ASSERT_EQ(expected.size(), 4u);
  Session small_chunks = session(300, KvType::f32, Contract::f32, 7), rewound = session(380),
          forked = session(200);
  rewound.rewind(300);
  EXPECT_EQ(names(rewound), expected);
  Session fork = forked.fork(), other = session(10);
  const BatchEntry batch[] = {{&fork, std::span(ids).subspan(200, 100)},
                              {&other, std::span(ids).subspan(10, 90)}};
  append(batch);
  Snapshot::save(whole, file);
  Session restored = Snapshot::open(file).restore(m, {.session = options(1)});
  for (Session* s : {&small_chunks, &rewound, &fork, &restored}) {
    EXPECT_EQ(names(*s), expected);
    EXPECT_EQ(id(*s), id(whole));
  }
  EXPECT_EQ(names(other)[0], expected[0]);
  for (const SnapshotForm form : {SnapshotForm::full, SnapshotForm::recipe}) {
    Snapshot::save(whole, file, {.form = form});
    EXPECT_EQ(Snapshot::open(file).block_identities(), expected);
    EXPECT_EQ(Snapshot::open(file).digests().id, id(whole));
    Snapshot::open(file).check(1);
  }
}

// ---------------------------------------------------------------- traps

TEST_F(Identity, AShiftedStateDiffersFromOneWithoutTheTokens) {
  Session abc = session(150), ac = session(64);
  abc.prune_range(64, 86, true);
  ac.append(std::span(ids).subspan(86, 64));
  ASSERT_EQ(abc.tokens(), ac.tokens());
  EXPECT_EQ(names(abc)[0], names(ac)[0]);
  EXPECT_NE(names(abc)[1], names(ac)[1]);
  EXPECT_NE(id(abc), id(ac));
}

TEST_F(Identity, ABlocksIdentityDependsOnVisiblePrunedPositions) {
  Session before = session(64), after = session(128);
  before.prune_range(3, 9, false);
  before.append(std::span(ids).subspan(64, 64));
  after.prune_range(3, 9, false);
  ASSERT_EQ(before.tokens(), after.tokens());
  ASSERT_EQ(before.kv().visible(0), after.kv().visible(0));
  EXPECT_NE(names(before)[1], names(after)[1]);
  Session plain = session(128);
  EXPECT_EQ(names(after)[1], names(plain)[1]);
  EXPECT_NE(names(after)[0], names(plain)[0]);
}

TEST_F(Identity, DependsOnContractKvTypeAndModel) {
  std::vector<Sha256> found;
  const auto add = [&](Session s) {
    found.push_back(names(s)[0].id);
    found.push_back(id(s));
  };
  add(session(70));
  add(session(70, KvType::bf16));
  add(session(70, KvType::f16));
  add(session(70, KvType::f32, Contract::bf16));
  if (have_blas()) add(session(70, KvType::f32, Contract::f32_blas));
  Session q8(model(data_path("models/llama32-tiny-bf16"), Contract::q8),
             options(1, STET_DEFAULT_ISA, 512, Contract::q8));
  q8.append(std::span(ids).first(70));
  add(std::move(q8));
  const auto other = model(data_path("models/llama31-tiny"));
  Session another(other, options(1));
  another.append(std::vector<int32_t>(70, 3));
  add(std::move(another));
  std::sort(found.begin(), found.end());
  EXPECT_EQ(std::adjacent_find(found.begin(), found.end()), found.end());
}

TEST_F(Identity, AStatesIdentityCoversEverythingThatAffectsIt) {
  Session s = session(70);
  std::vector<Sha256> found = {id(s)};
  const auto changed = [&](auto change) {
    Session other = s.fork();
    change(other);
    found.push_back(id(other));
  };
  changed([&](Session& o) { o.append(std::span(ids).first(1)); });
  changed([](Session& o) { o.rewind(69); });
  changed([](Session& o) { o.generation().sampling.seed = 9; });
  changed([](Session& o) { o.generation().stop_ids = {3}; });
  changed([](Session& o) { o.generation().turns = {{0, 1, 2, true}}; });
  changed([](Session& o) { o.chat().messages = {{"user", "hello", "", 0, 4, false}}; });
  changed([](Session& o) { o.prune_range(2, 3, false); });
  changed([](Session& o) { o.prune_range(2, 3, true); });
  changed([](Session& o) {
    o.set_key(0, 0, 69, std::vector<float>(static_cast<size_t>(o.kv().shape().head_dim), 0.5f));
  });
  changed([](Session& o) {
    o.set_key(0, 0, 69, std::vector<float>(static_cast<size_t>(o.kv().shape().head_dim), 0.25f));
  });
  std::sort(found.begin(), found.end());
  EXPECT_EQ(std::adjacent_find(found.begin(), found.end()), found.end());
  Session same = s.fork();
  same.set_compute(options(2, STET_DEFAULT_ISA, 3).compute);
  EXPECT_EQ(id(same), id(s));
}

// ---------------------------------------------------------------- states that tokens do not
// reproduce

TEST_F(Identity, EditedBlocksAndTheirDependentsAreIdentifiedByBytes) {
  Session s = session(200), plain = session(330);
  const std::vector<float> x(static_cast<size_t>(s.kv().shape().head_dim), 0.5f);
  EXPECT_FALSE(replay_limit(s.state()));
  s.set_value(1, 0, 70, x);
  EXPECT_EQ(given(s), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(names(s)[0], names(plain)[0]);
  EXPECT_EQ(names(s)[2], names(plain)[2]);  // computed before the edit
  EXPECT_EQ(replay_limit(s.state())->position, 70);
  EXPECT_EQ(replay_limit(s.state())->reason, "the value of position 70, layer 1, head 0 was set");
  s.append(std::span(ids).subspan(200, 130));
  EXPECT_EQ(given(s), (std::vector<bool>{true, false, true, false, false}));
  const auto before = names(s);
  s.set_value(1, 0, 70, std::vector<float>(x.size(), 0.25f));
  EXPECT_NE(names(s)[1], before[1]);
  EXPECT_EQ(names(s)[3], before[3]);
  s.prune_range(130, 140, true);
  EXPECT_EQ(given(s), (std::vector<bool>{true, false, false, false, false}));
  Session cut = session(200);
  cut.set_key(0, 0, 150, x);
  cut.rewind(140);
  EXPECT_TRUE(replay_limit(cut.state()) == std::nullopt);
  EXPECT_EQ(given(cut), (std::vector<bool>{true, true}));
}

TEST_F(Identity, SurvivesSnapshotsWhereTokensDoNotGiveIt) {
  Session s = session(200);
  s.set_key(0, 1, 70, std::vector<float>(static_cast<size_t>(s.kv().shape().head_dim), 0.5f));
  Snapshot::save(s, file);
  const Snapshot snapshot = Snapshot::open(file);
  EXPECT_EQ(snapshot.block_identities(), names(s));
  EXPECT_EQ(snapshot.digests().id, id(s));
  snapshot.check(1);
  for (const bool map : {true, false}) {
    Session back = snapshot.restore(m, {.session = options(1), .map = map});
    EXPECT_EQ(names(back), names(s));
    EXPECT_EQ(id(back), id(s));
  }
  EXPECT_EQ(replayable_blocks(snapshot), (std::vector<bool>{true, false, true, true}));
  EXPECT_FALSE(verify(snapshot, m, options(1), false));

  // Changes bytes with correct digests, in a block identified by its bytes and in one identified by
  // its tokens.
  const size_t block = s.kv().shape().block_bytes(),
               layers = static_cast<size_t>(s.kv().shape().layers);
  for (const size_t b : {size_t{1}, size_t{2}}) {
    SnapshotImage image = SnapshotImage::parse(read_text(file));
    std::string& kv = image.section("KV").content;
    kv[b * block] = static_cast<char>(kv[b * block] ^ 1);
    std::string digests;
    for (const Digest& d :
         layer_digests(s.kv().shape(), reinterpret_cast<const std::byte*>(kv.data() + b * block)))
      digests += le(d);
    image.section("BLOCKS").content.replace(b * layers * 16, digests.size(), digests);
    write_file(scratch / "other.stet", forged(image));
    const Snapshot other = Snapshot::open(scratch / "other.stet");
    if (b == 1) {
      EXPECT_TRUE(
          error_of([&] {
            other.check(1);
          }).starts_with("format: " + scratch / "other.stet" + ": KV block 1: expected sha256:"));
    } else {
      const auto difference = verify(other, m, options(1), false);
      ASSERT_TRUE(difference);
      EXPECT_EQ(difference->what, "keys and values of block 2 (positions 128 .. 191)");
    }
  }
}

// A block without a visible position is in no file, and is verified nevertheless.
TEST_F(Identity, PrunedEditedBlocksAreVerified) {
  Session s = session(200);
  s.set_key(0, 1, 70, std::vector<float>(static_cast<size_t>(s.kv().shape().head_dim), 0.5f));
  s.prune_range(64, 128, false);
  Snapshot::save(s, file);
  Snapshot::open(file).check(1);
  SnapshotImage image = SnapshotImage::parse(read_text(file));
  image.required = 4;
  image.section("CONTENT").content[3] ^= 1;
  write_file(file, forged(image));
  image.id = std::string(32, '\0');
  const std::string error = error_of([&] { Snapshot::open(file).check(1); }),
                    claimed = error.substr(error.find("found ") + 6);
  const std::optional<Sha256> id = parse_sha256(claimed);
  ASSERT_TRUE(id) << error;
  image.id.assign(reinterpret_cast<const char*>(id->bytes.data()), 32);
  write_file(file, forged(image));
  EXPECT_TRUE(error_of([&] {
                Snapshot::open(file).check(1);
              }).starts_with("format: " + file + ": KV block 1: expected sha256:"));
}

TEST_F(Identity, BlocksComputedByBlasAreIdentifiedByBytes) {
  if (!have_blas()) GTEST_SKIP() << "built without OpenBLAS";
  Session s = session(130, KvType::f32, Contract::f32_blas);
  EXPECT_EQ(given(s), (std::vector<bool>{false, false}));
  EXPECT_EQ(replay_limit(s.state())->position, 0);
  EXPECT_EQ(error_of([&] { Snapshot::save(s, file, {.form = SnapshotForm::recipe}); }),
            "argument: " + file +
                ": form: the state cannot be saved as a recipe, since its tokens do not give it: "
                "OpenBLAS computed it (contract f32-blas)");
  Snapshot::save(s, file);
  EXPECT_EQ(Snapshot::open(file).block_identities(), names(s));
  Snapshot::open(file).check(1);
}

}  // namespace
}  // namespace stet::test::identity_tests
