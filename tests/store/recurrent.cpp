// States of models with recurrent layers in a store: blocks come with an anchor, or not at all.
#include <gtest/gtest.h>

#include <optional>

#include "src/snapshot/identity.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/store/copy.hpp"
#include "stet/store/session.hpp"
#include "tests/support/models.hpp"
#include "tests/support/recurrent_family.hpp"
#ifdef STET_HAVE_HIREDIS
#include "tests/store/redis_servers.hpp"
#endif

namespace stet::test::recurrent_store_tests {
namespace {

enum class Place { directory, redis };

class RecurrentStore : public testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    std::string url = directory_ / "store";
    if (GetParam() == Place::redis) {
#ifdef STET_HAVE_HIREDIS
      if (!have_redis_server()) GTEST_SKIP() << "no redis-server and redis-cli here";
      server_ = std::make_unique<RedisServer>(std::vector<std::string>{"--appendonly", "no"});
      url = server_->url();
#else
      GTEST_SKIP() << "built without hiredis";
#endif
    }
    create_store(url, 0);
    store.emplace(open_store_backend(url), key, StoreOptions{.fetch = FetchChoice::always});
    Session s = session(300);
    put = put_session(*store, s, {});
  }
  Session session(int64_t tokens) const {
    Session s(m, options(1));
    s.append(std::span(ids).first(static_cast<size_t>(tokens)));
    return s;
  }
  void expect_same(Session& a, int64_t tokens) const {
    Session b = session(tokens);
    EXPECT_TRUE(same_bytes(a.recurrent().numbers(), b.recurrent().numbers()));
    EXPECT_TRUE(same_state(a, b));
    EXPECT_EQ(digests_of(a).state, digests_of(b).state);
  }
  // Removes one record of a block or anchor.
  void remove(const Sha256& identity) {
    EXPECT_TRUE(store->backend().remove(RecordClass::blocks, store->place(identity), INT64_MAX));
  }

  TemporaryDirectory directory_;
#ifdef STET_HAVE_HIREDIS
  std::unique_ptr<RedisServer> server_;
#endif
  std::shared_ptr<const Model> m = recurrent_model();
  const std::vector<int32_t> ids = random_tokens(*m, 400);
  const StoreKey key = StoreKey::random();
  std::optional<Store> store;
  StorePutReport put;
};
INSTANTIATE_TEST_SUITE_P(Places, RecurrentStore, testing::Values(Place::directory, Place::redis),
                         [](const auto& info) {
                           return info.param == Place::redis ? "redis" : "directory";
                         });

TEST_P(RecurrentStore, AStateComesBackFromItsBlocksAndAnAnchor) {
  EXPECT_EQ(put.blocks, 4u + 1u);
  const StoreSnapshot s = open_snapshot(*store, put.place);
  StoreRestoreReport report;
  Session again = restore_session(*store, *s.snapshot, m, {.session = options(1)}, &report);
  EXPECT_EQ(report.fetched, 4u);
  EXPECT_EQ(report.restored.recomputed, 300 - 256);
  expect_same(again, 300);
}

TEST_P(RecurrentStore, ATenantsRecordNamesItsBlocksAndItsAnchor) {
  Store tenant(open_store_backend(store->url()), key.for_tenant("alice"));
  Session s = session(300);
  const StoreSnapshot from = open_snapshot(*store, put_session(tenant, s, {}).place);
  remove(s.block_identities()[1].id);  // of the state that SetUp() has put without a salt
  StoreRestoreReport report;
  Session again =
      restore_session(*store, *from.snapshot, m, {.session = options(1)}, &report, &from.record);
  EXPECT_EQ(report.fetched, 4u);
  expect_same(again, 300);
}

TEST_P(RecurrentStore, AnchorsAreReadAndCopiedWithBlocks) {
  std::vector<Sha256> places;
  store->backend().list(RecordClass::blocks,
                        [&](const RecordInfo& e) { places.push_back(e.name); });
  size_t anchors = 0;
  for (const StoredBlock& b : store->blocks_at(places)) {
    EXPECT_EQ(b.refused, "");
    EXPECT_FALSE(b.bytes.empty());
    anchors += b.kind == RecordKind::anchor;
  }
  EXPECT_EQ(places.size(), 4u + 1u);
  EXPECT_EQ(anchors, 1u);
  create_store(directory_ / "other", 0);
  Store other(open_store_backend(directory_ / "other"), key, {.fetch = FetchChoice::always});
  const StoreCopy copied = copy_state(*store, other, put.place);
  EXPECT_EQ(copied.blocks, 4u + 1u);
  EXPECT_EQ(copied.missing_blocks, 0u);
  const StoreSnapshot s = open_snapshot(other, put.place);
  StoreRestoreReport report;
  Session again = restore_session(other, *s.snapshot, m, {.session = options(1)}, &report);
  EXPECT_EQ(report.fetched, 4u);
  expect_same(again, 300);
}

TEST_P(RecurrentStore, AMissingBlockMeansThatAllTokensAreComputed) {
  Session s = session(300);
  remove(s.block_identities()[1].id);
  const StoreSnapshot opened = open_snapshot(*store, put.place);
  StoreRestoreReport report;
  Session again = restore_session(*store, *opened.snapshot, m, {.session = options(1)}, &report);
  EXPECT_EQ(report.fetched, 0u);
  EXPECT_EQ(report.restored.recomputed, 300);
  expect_same(again, 300);
  EXPECT_FALSE(fetch_prefix(*store, m, options(1), ids, 0));
}

TEST_P(RecurrentStore, AMissingAnchorMeansThatAllTokensAreComputed) {
  Session s = session(300);
  const int64_t end = 256;
  remove(anchor_names(s.state(), s.kv().shape(), {&end, 1}).front());
  const StoreSnapshot opened = open_snapshot(*store, put.place);
  StoreRestoreReport report;
  Session again = restore_session(*store, *opened.snapshot, m, {.session = options(1)}, &report);
  EXPECT_EQ(report.restored.recomputed, 300);
  expect_same(again, 300);
  EXPECT_FALSE(fetch_prefix(*store, m, options(1), ids, 0));
  EXPECT_EQ(put_session(*store, s, {}).written, 1u) << "the anchor comes back";
  EXPECT_TRUE(fetch_prefix(*store, m, options(1), ids, 0));
}

TEST_P(RecurrentStore, StatesWithoutKeysAndValuesComeBack) {
  for (const Subject& subject : subjects_without_attention()) {
    SCOPED_TRACE(subject.name);
    const auto other = model(subject.directory);
    const std::vector<int32_t> tokens = random_tokens(*other, 200);
    Session s(other, options(1));
    s.append(tokens);
    const StoreSnapshot opened = open_snapshot(*store, put_session(*store, s, {}).place);
    StoreRestoreReport report;
    Session again =
        restore_session(*store, *opened.snapshot, other, {.session = options(1)}, &report);
    EXPECT_EQ(report.restored.recomputed, 200 - 192);
    EXPECT_EQ(digests_of(again).state, digests_of(s).state);
    std::optional<Session> prefix = fetch_prefix(*store, other, options(1), tokens, 0);
    ASSERT_TRUE(prefix);
    EXPECT_EQ(prefix->size(), 192);
    prefix->append(std::span(tokens).subspan(192));
    EXPECT_EQ(digests_of(*prefix).id, digests_of(s).id);
    const std::string to = directory_ / subject.name;
    create_store(to, 0);
    Store copy(open_store_backend(to), key, {.fetch = FetchChoice::always});
    const StoreCopy copied = copy_state(*store, copy, opened.snapshot->digests().id);
    EXPECT_EQ(copied.blocks, 3u + 1u) << "blocks without bytes are copied, too";
    EXPECT_EQ(copied.missing_blocks, 0u);
  }
}

TEST_P(RecurrentStore, APrefixEndsAtAnAnchor) {
  std::optional<Session> found = fetch_prefix(*store, m, options(1), ids, 0);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->size(), 256);
  expect_same(*found, 256);
  found->append(std::span(ids).subspan(256, 44));
  expect_same(*found, 300);
  EXPECT_FALSE(fetch_prefix(*store, m, options(1), std::span(ids).first(255), 0))
      << "an anchor after the prefix does not help";
  EXPECT_FALSE(fetch_prefix(*store, m, options(1), ids, 256));
}

}  // namespace
}  // namespace stet::test::recurrent_store_tests
