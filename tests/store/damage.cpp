// Randomly damaged records of a store, in a directory and on a server. They are flipped, cut,
// lengthened, swapped, of another kind or model, or written without the writers' key. Damaged
// blocks are refused, computed instead, and reported. Damaged states and names are refused in one
// line. Putting a state again repairs everything. STET_DAMAGED sets the number of damages (default
// 90, on a server a third of it).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>

#include "stet/store/session.hpp"
#include "tests/support/models.hpp"
#ifdef STET_HAVE_HIREDIS
#include "tests/store/redis_servers.hpp"
#else
#endif

namespace stet::test::damage_tests {
namespace {

namespace fs = std::filesystem;

// Access to the stored records that bypasses all checks.
struct RawStore {
  std::string url;
  std::function<std::string(const std::string&)> read;
  std::function<void(const std::string&, const std::string&)> write;
  // Returns a record's path or key. Takes its hash in hex, or the name.
  std::function<std::string(RecordKind, const std::string&)> where;
};

std::string hex_of(const Sha256& hash) { return sha256_text(hash).substr(7); }

class Damage {
 public:
  explicit Damage(RawStore raw) : raw_(std::move(raw)) {
    create_store(raw_.url, 0);
    StoreOptions options;
    options.fetch = FetchChoice::always;  // fetches all sound blocks
    store_ = std::make_unique<Store>(open_store_backend(raw_.url), key_, options);
    // Two models, so that each has records that do not belong to the other.
    for (const char* name : {"pocket-gemma3", "pocket-llama3"}) {
      models_.push_back(test::model(asset_path(name)));
      Session s(models_.back(), {.capacity = 1024});
      std::vector<int32_t> ids;
      // Four full blocks, which the store keeps, and three more tokens, which every restore computes.
      for (int i = 0; i < 4 * 64 + 3; ++i) ids.push_back(3 + i * 37 % 450);
      s.append(ids);
      sessions_.push_back(std::move(s));
      const StorePutReport put = put_session(*store_, sessions_.back(), {});
      places_.push_back(put.place);
      store_->set_name("name" + std::to_string(sessions_.size()), std::nullopt, put.place);
      snapshots_.push_back(open_snapshot(*store_, put.place));
      for (const Sha256& b : snapshots_.back().record.blocks)
        blocks_.push_back({RecordKind::block, hex_of(b), sessions_.size() - 1});
      others_.push_back({RecordKind::state, hex_of(put.place), sessions_.size() - 1});
      others_.push_back(
          {RecordKind::name, "name" + std::to_string(sessions_.size()), sessions_.size() - 1});
    }
  }

  void once(unsigned seed) {
    random_.seed(seed);
    const bool block = pick(3) > 0;
    const Target& target = block ? blocks_[pick(blocks_.size())] : others_[pick(others_.size())];
    const std::string at = raw_.where(target.kind, target.name), before = raw_.read(at);
    ASSERT_FALSE(before.empty());
    const std::string damaged = changed(target, before);
    SCOPED_TRACE(record_kind_name(target.kind) + (" as by " + what_));
    if (damaged == before) return;
    raw_.write(at, damaged);
    if (block)
      expect_computed(target);
    else
      expect_refused(target);
    raw_.write(at, before);
    expect_whole(target);
  }

 private:
  struct Target {
    RecordKind kind;
    std::string name;
    size_t model;
  };

  size_t pick(size_t n) { return random_() % n; }

  std::string changed(const Target& target, std::string bytes) {
    const size_t how = pick(8);
    static const char* const kWhats[] = {"flips",    "one bit", "a cut",      "more bytes",
                                         "a record", "zeros",   "a stranger", "nothing in it"};
    what_ = kWhats[how];
    switch (how) {
      case 0:
        for (size_t n = 1 + pick(20); n > 0; --n)
          bytes[pick(bytes.size())] ^= static_cast<char>(1 + pick(255));
        break;
      case 1:
        bytes[pick(std::min<size_t>(bytes.size(), 300))] ^= static_cast<char>(1 << pick(8));
        break;
      case 2:
        bytes.resize(pick(bytes.size()));
        break;
      case 3:
        bytes.append(1 + pick(5000), static_cast<char>(pick(256)));
        break;
      case 4: {  // returns the valid record of another name, kind or model
        const auto& all = pick(2) == 0 ? blocks_ : others_;
        const Target& other = all[pick(all.size())];
        return raw_.read(raw_.where(other.kind, other.name));
      }
      case 5:
        std::fill_n(bytes.begin() + static_cast<long>(pick(bytes.size())), 1, '\0');
        std::fill(bytes.begin() + static_cast<long>(bytes.size() / 2), bytes.end(), '\0');
        break;
      case 6:
        return by_a_stranger(target, bytes);
      default:
        bytes.clear();
    }
    return bytes;
  }

  // Returns the same payload under the HMAC of another key.
  static std::string by_a_stranger(const Target& target, const std::string& bytes) {
    const size_t front = target.kind == RecordKind::block ? kBlockFront : kRecordFront;
    StoreKey stranger;
    stranger.writers.fill(std::byte{9});
    Record r;
    r.kind = target.kind;
    std::memcpy(r.name.bytes.data(), bytes.data() + 16, 32);
    r.payload = as_bytes(bytes).subspan(front);
    const std::vector<std::byte> sealed = seal_record(stranger, r);
    return std::string(reinterpret_cast<const char*>(sealed.data()), sealed.size()) +
           bytes.substr(front);
  }

  StoreRestoreReport restore(size_t model) {
    StoreRestoreReport r;
    RestoreOptions how;
    how.session.capacity = 1024;
    Session again = restore_session(*store_, *snapshots_[model].snapshot, models_[model], how, &r);
    EXPECT_EQ(digests_of(again).state, digests_of(sessions_[model]).state);
    return r;
  }

  void expect_computed(const Target& target) {
    const StoreRestoreReport r = restore(target.model);
    EXPECT_EQ(r.computed, 1u) << r.text();
    EXPECT_EQ(r.fetched, 3u);
    ASSERT_EQ(r.reasons.size(), 1u);
    EXPECT_NE(r.reasons[0].find("1 was "), std::string::npos) << r.text();
    EXPECT_EQ(put_session(*store_, sessions_[target.model], {}).written, 1u);
    EXPECT_EQ(restore(target.model).computed, 0u);
  }

  void expect_refused(const Target& target) {
    try {
      if (target.kind == RecordKind::state)
        store_->state(places_[target.model]);
      else
        store_->resolve(target.name);
      ADD_FAILURE() << "it was taken";
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos);
      EXPECT_NE(std::string(e.what()).find(target.name.substr(0, 16)), std::string::npos)
          << e.what();
    }
    // gc() deletes nothing that the other model's name refers to, and nothing at all if a name cannot
    // be read.
    GcOptions now;
    now.grace = 14 * 24 * 3600;
    try {
      EXPECT_EQ(store_->gc(now).blocks, 0u);
    } catch (const Error&) {
      EXPECT_EQ(target.kind, RecordKind::name);
    }
  }

  void expect_whole(const Target& target) {
    EXPECT_EQ(store_->resolve("name" + std::to_string(target.model + 1)), places_[target.model]);
    EXPECT_EQ(store_->state(places_[target.model]).blocks.size(), 4u);
    EXPECT_EQ(restore(target.model).computed, 0u);
    put_session(*store_, sessions_[target.model], {});
  }

  const RawStore raw_;
  const StoreKey key_ = StoreKey::random();
  std::unique_ptr<Store> store_;
  std::mt19937 random_;
  std::string what_;
  std::vector<std::shared_ptr<const Model>> models_;
  std::vector<Session> sessions_;
  std::vector<StoreSnapshot> snapshots_;
  std::vector<Sha256> places_;
  std::vector<Target> blocks_, others_;
};

unsigned damaged() {
  const char* given = std::getenv("STET_DAMAGED");
  return given == nullptr ? 90 : static_cast<unsigned>(std::atoi(given));
}

TEST(StoreDamage, IsRefusedRecomputedAndReportedInADirectory) {
  const TemporaryDirectory scratch;
  const std::string path = scratch / "store";
  Damage damage({path, [](const std::string& at) { return read_text(at); },
                 [](const std::string& at, const std::string& bytes) {
                   fs::remove(at);  // a mapping keeps the old file
                   write_file(at, bytes);
                 },
                 [&](RecordKind kind, const std::string& name) {
                   return path + "/" + record_kind_name(kind) + "s/" + name;
                 }});
  for (unsigned n = 0; n < damaged() && !testing::Test::HasFailure(); ++n) {
    SCOPED_TRACE(n);
    damage.once(n);
  }
}

#ifdef STET_HAVE_HIREDIS
TEST(StoreDamage, IsRefusedRecomputedAndReportedOnAServer) {
  if (!have_redis_server()) GTEST_SKIP() << "no redis-server and redis-cli here";
  const RedisServer server({"--appendonly", "no"});
  Damage damage({server.url(),
                 [&](const std::string& at) {
                   return server.ask({"GET", at});
                 },
                 [&](const std::string& at, const std::string& bytes) {
                   server.ask({"SET", at, bytes});
                 },
                 [](RecordKind kind, const std::string& name) {
                   return kind == RecordKind::name    ? "test:n:" + name
                          : kind == RecordKind::block ? "test:b:{" + name + "}:0"
                                                      : "test:s:{" + name + "}:0";
                 }});
  for (unsigned n = 0; n < (damaged() + 2) / 3 && !testing::Test::HasFailure(); ++n) {
    SCOPED_TRACE(n);
    damage.once(n);
  }
}
#endif

}  // namespace
}  // namespace stet::test::damage_tests
