// States of models with recurrent layers in a store: blocks come with an anchor, or not at all.
#include <gtest/gtest.h>

#include <optional>

#include "stet/snapshot/snapshot.hpp"
#include "stet/store/session.hpp"
#include "tests/support/models.hpp"
#include "tests/support/recurrent_family.hpp"

namespace stet::test::recurrent_store_tests {
namespace {

class RecurrentStore : public testing::Test {
 protected:
  RecurrentStore() {
    create_store(directory_ / "store", 0);
    store.emplace(open_store_backend(directory_ / "store"), StoreKey::random(),
                  StoreOptions{.fetch = FetchChoice::always});
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
  std::shared_ptr<const Model> m = recurrent_model();
  const std::vector<int32_t> ids = random_tokens(*m, 400);
  std::optional<Store> store;
  StorePutReport put;
};

TEST_F(RecurrentStore, AStateComesBackFromItsBlocksAndAnAnchor) {
  EXPECT_EQ(put.blocks, 4u + 1u);
  const StoreSnapshot s = open_snapshot(*store, put.place);
  StoreRestoreReport report;
  Session again = restore_session(*store, *s.snapshot, m, {.session = options(1)}, &report);
  EXPECT_EQ(report.fetched, 4u);
  EXPECT_EQ(report.restored.recomputed, 300 - 256);
  expect_same(again, 300);
}

TEST_F(RecurrentStore, AMissingBlockMeansThatAllTokensAreComputed) {
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

TEST_F(RecurrentStore, APrefixEndsAtAnAnchor) {
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
