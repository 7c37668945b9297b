// Records, names and states of a store in a directory. Everything comes back bit for bit. Damaged,
// swapped, forged or missing records are computed instead, and reported.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <set>

#include "src/store/block_memory.hpp"
#include "stet/base/bytes.hpp"
#include "stet/base/hmac.hpp"
#include "stet/base/poly1305.hpp"
#include "stet/store/copy.hpp"
#include "stet/store/session.hpp"
#include "tests/support/models.hpp"

namespace stet::test::store_tests {
namespace {

namespace fs = std::filesystem;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// RFC 4231, test cases 1, 2 and 6.
TEST(Hmac, IsThatOfTheStandard) {
  const auto mac = [](const std::string& key, const std::string& text) {
    return sha256_text(hmac_sha256(as_bytes(key), as_bytes(text)));
  };
  EXPECT_EQ(mac(std::string(20, '\x0b'), "Hi There"),
            "sha256:b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(mac("Jefe", "what do ya want for nothing?"),
            "sha256:5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(mac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "sha256:60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  Sha256 a, b;
  b.bytes[31] = std::byte{1};
  EXPECT_TRUE(equal_in_constant_time(a.bytes, a.bytes));
  EXPECT_FALSE(equal_in_constant_time(a.bytes, b.bytes));
  EXPECT_FALSE(equal_in_constant_time(a.bytes, std::span(a.bytes).first(31)));
}

TEST(StoreKey, IsPrivate) {
  const TemporaryDirectory scratch;
  const std::string path = scratch / "key";
  const StoreKey key = StoreKey::random();
  key.save(path);
  EXPECT_EQ(StoreKey::load(path).writers, key.writers);
  EXPECT_EQ(error_of([&] { key.save(path); }),
            "argument: " + path + ": key: the file exists already");
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  EXPECT_EQ(error_of([&] { StoreKey::load(path); }),
            "io: " + path +
                ": permissions: others can read the key (mode 640); chmod 600 makes it private");
  write_file(scratch / "other", "something else\n");
  ASSERT_EQ(::chmod((scratch / "other").c_str(), 0600), 0);
  EXPECT_EQ(error_of([&] { StoreKey::load(scratch / "other"); }),
            "format: " + scratch / "other" +
                ": first line: expected stet store key 1, found something else");
}

constexpr RecordKind kKinds[] = {RecordKind::block, RecordKind::state, RecordKind::name};
const Sha256 kName = sha256_of(as_bytes("name"));

std::vector<std::byte> sealed(const StoreKey& key, const Record& record) {
  std::vector<std::byte> bytes = seal_record(key, record);
  EXPECT_EQ(bytes.size(), record.kind == RecordKind::block ? kBlockFront : kRecordFront);
  bytes.insert(bytes.end(), record.payload.begin(), record.payload.end());
  return bytes;
}

void expect_refused(const StoreKey& key, RecordKind kind, const Sha256& name,
                    std::span<const std::byte> bytes, const std::string& why) {
  const std::string error = error_of([&] { open_record(key, kind, name, bytes, "r"); });
  EXPECT_TRUE(error.starts_with(why)) << error;
}

// Expects that a record opens unchanged, and that it does not open with a flipped bit, with fewer
// bytes, or as another kind or name.
void expect_guarded(const StoreKey& key, const Record& record, std::vector<std::byte> bytes) {
  const Record found = open_record(key, record.kind, record.name, bytes, "r");
  EXPECT_EQ(text_of(found.payload), text_of(record.payload));
  EXPECT_EQ(found.encoding, record.encoding);
  for (size_t i = 0; i < bytes.size() * 8; ++i) {
    bytes[i / 8] ^= std::byte{1} << (i % 8);
    EXPECT_THROW(open_record(key, record.kind, record.name, bytes, "r"), Error) << i;
    bytes[i / 8] ^= std::byte{1} << (i % 8);
  }
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THROW(open_record(key, record.kind, record.name, std::span(bytes).first(size), "r"),
                 Error);
  bytes.push_back(std::byte{0});
  expect_refused(key, record.kind, record.name, bytes, "format: r: bytes: expected ");
  bytes.pop_back();
  expect_refused(StoreKey::random(), record.kind, record.name, bytes,
                 "mismatch: r: HMAC: the record was not sealed with this store's key");
  expect_refused(key, record.kind, Sha256(), bytes, "mismatch: r: name: expected sha256:000000");
  for (const RecordKind other : kKinds) {
    if (other != record.kind)
      expect_refused(key, other, record.name, bytes, "mismatch: r: kind: expected ");
  }
}

TEST(StoreRecord, EveryFlippedBitIsRefused) {
  const StoreKey key = StoreKey::random();
  for (const RecordKind kind : kKinds) {
    for (const std::string& payload : {std::string("sixty-four positions"), std::string()}) {
      const Record record{kind, kName, 0, as_bytes(payload)};
      expect_guarded(key, record, sealed(key, record));
    }
  }
}

// Offsets of fields that an owner of the key might change.
constexpr size_t kVersionAt = 8, kNonceAt = 48, kTagAt = 64, kSealAt = 96;

TEST(StoreRecord, AnUnknownVersionIsNotRead) {
  const StoreKey key = StoreKey::random();
  std::vector<std::byte> bytes = sealed(key, {RecordKind::state, kName, 0, {}});
  for (const int version : {0, 1, 3}) {
    bytes[kVersionAt] = static_cast<std::byte>(version);
    expect_refused(key, RecordKind::state, kName, bytes,
                   "unsupported: r: version: expected 2, found " + std::to_string(version));
  }
}

void copy_bytes(std::vector<std::byte>& to, std::span<const std::byte> from, size_t at,
                size_t count) {
  std::ranges::copy(from.subspan(at, count), to.begin() + static_cast<std::ptrdiff_t>(at));
}

void seal_again(const StoreKey& key, std::vector<std::byte>& bytes) {
  const Sha256 seal = hmac_sha256(key.writers, std::span(bytes).first(kSealAt));
  std::ranges::copy(seal.bytes, bytes.begin() + kSealAt);
}

TEST(StoreRecord, IsThatOfTheTableInItsHeader) {
  const StoreKey key = StoreKey::random();
  const std::string payload = "sixty-four positions";
  const Record record{RecordKind::state, kName, 0, as_bytes(payload)};
  const std::vector<std::byte> bytes = sealed(key, record);
  const std::span<const std::byte> nonce = std::span(bytes).subspan(kNonceAt, 16);
  ByteWriter tagged;
  tagged.text("stet content 2\n");
  tagged.u32(2);
  tagged.bytes(kName.bytes);
  tagged.bytes(nonce);
  ByteWriter w;
  w.text("\x93STK\r\n\x1a\n");
  w.u32(2);  // the version
  w.u32(2);  // the kind: a state
  w.bytes(kName.bytes);
  w.bytes(nonce);
  w.bytes(poly1305_of(hmac_sha256(key.writers, tagged.data()).bytes, record.payload));
  w.u64(payload.size());
  w.u32(0);
  w.u32(192);
  w.bytes(hmac_sha256(key.writers, w.data()).bytes);
  w.zeros(192 - w.size());
  w.text(payload);
  EXPECT_EQ(bytes, w.take());
}

TEST(StoreRecord, IsNeverTheSameTwice) {
  const StoreKey key = StoreKey::random();
  const std::string payload = "sixty-four positions";
  for (const RecordKind kind : kKinds) {
    const Record record{kind, kName, 0, as_bytes(payload)};
    const std::vector<std::byte> a = sealed(key, record), b = sealed(key, record);
    for (const size_t at : {kNonceAt, kTagAt, kSealAt})
      EXPECT_FALSE(std::ranges::equal(std::span(a).subspan(at, 16), std::span(b).subspan(at, 16)));
    for (const auto& bytes : {a, b})
      EXPECT_EQ(text_of(open_record(key, kind, kName, bytes, "r").payload), payload);
    // Apart from nonce, tag and HMAC, both records have the same bytes.
    EXPECT_TRUE(
        std::ranges::equal(std::span(a).subspan(kSealAt + 32), std::span(b).subspan(kSealAt + 32)));
  }
}

// Even with a correct HMAC, a nonce and a tag belong to one payload, name and kind.
TEST(StoreRecord, TheTagOfAnotherIsRefused) {
  const StoreKey key = StoreKey::random();
  const std::string payload = "sixty-four positions", other = "sixty-four POSITIONS";
  const auto swapped = [&](const std::vector<std::byte>& from, size_t at, size_t count) {
    std::vector<std::byte> bytes = sealed(key, {RecordKind::state, kName, 0, as_bytes(payload)});
    copy_bytes(bytes, from, at, count);
    expect_refused(key, RecordKind::state, kName, bytes, "mismatch: r: HMAC: ");
    seal_again(key, bytes);
    expect_refused(key, RecordKind::state, kName, bytes,
                   "format: r: content: the bytes are not those that were sealed");
  };
  const auto state_of = [&](const Sha256& name, const std::string& text) {
    return sealed(key, {RecordKind::state, name, 0, as_bytes(text)});
  };
  swapped(state_of(kName, other), kNonceAt, 32);
  swapped(state_of(kName, payload), kNonceAt, 16);
  swapped(state_of(kName, payload), kTagAt, 16);
  swapped(state_of(Sha256(), payload), kNonceAt, 32);
  swapped(sealed(key, {RecordKind::name, kName, 0, as_bytes(payload)}), kNonceAt, 32);
  // The header of one record is refused with the payload of another.
  std::vector<std::byte> bytes = state_of(kName, other);
  copy_bytes(bytes, state_of(kName, payload), 0, kRecordFront);
  expect_refused(key, RecordKind::state, kName, bytes, "format: r: content: ");
}

// Options by which stored blocks are always fetched, even if computing them would be faster.
const StoreOptions kAlways = [] {
  StoreOptions o;
  o.fetch = FetchChoice::always;
  return o;
}();

class StoreTest : public testing::Test {
 protected:
  StoreTest() : model_(test::model(asset_path("pocket-gemma3"))) {
    create_store(path_, 0);
    store_ = open(key_);
  }

  std::unique_ptr<Store> open(const StoreKey& key) const {
    return std::make_unique<Store>(open_store_backend(path_), key, kAlways);
  }
  Session session(int64_t size, KvType type = KvType::f32) const {
    Session s(model_, {.capacity = 512, .kv_type = type});
    s.append(ids(size));
    return s;
  }
  static std::vector<int32_t> ids(int64_t size) { return stepped_ids(size, 37, 500, 0, 3); }
  // Puts and restores a session. Compares every byte, before and after appending more.
  StoreRestoreReport round_trip(Session& s,
                                const std::function<void(const Sha256&)>& between = nullptr,
                                bool map = true) {
    const Sha256 place = put_session(*store_, s, {}).place;
    if (between) between(place);
    const StoreSnapshot from = open_snapshot(*store_, place);
    StoreRestoreReport report;
    Session again = restore_session(*store_, *from.snapshot, model_, {.map = map}, &report);
    expect_equal(again, s);
    return report;
  }
  static void expect_equal(Session& a, Session& b) {
    EXPECT_EQ(digests_of(a).state, digests_of(b).state);
    EXPECT_EQ(digests_of(a).id, digests_of(b).id);
    Session a2 = a.fork(), b2 = b.fork();
    a2.append(ids(7));
    b2.append(ids(7));
    EXPECT_EQ(digests_of(a2).state, digests_of(b2).state);
  }
  std::vector<std::string> block_files() const {
    std::vector<std::string> files;
    for (const auto& e : fs::directory_iterator(path_ + "/blocks"))
      files.push_back(e.path().string());
    std::sort(files.begin(), files.end());
    return files;
  }

  TemporaryDirectory scratch_;
  const std::string path_ = scratch_ / "store";
  const StoreKey key_ = StoreKey::random();
  std::shared_ptr<const Model> model_;
  std::unique_ptr<Store> store_;
};

using StoreSessions = StoreTest;

TEST_F(StoreSessions, ComeBackBitForBitAtEveryLengthAroundABlock) {
  for (const KvType type : kKvTypes) {
    for (const int64_t size : {0, 1, 63, 64, 65, 127, 128, 129, 200}) {
      SCOPED_TRACE(size);
      Session s = session(size, type);
      const StoreRestoreReport r = round_trip(s);
      EXPECT_EQ(r.fetched, static_cast<size_t>(size / 64));
      EXPECT_EQ(r.computed, 0u);
      EXPECT_EQ(r.restored.recomputed, size % 64);
      EXPECT_EQ(r.reasons, std::vector<std::string>());
      round_trip(s, nullptr, false);
    }
  }
}

TEST_F(StoreSessions, PrunesAndInterventionsAreRestored) {
  for (const bool shift : {false, true}) {
    for (const auto& [begin, end, more] : std::vector<std::array<int64_t, 3>>{
             {10, 20, 0}, {10, 20, 5}, {0, 128, 3}, {60, 150, 80}}) {
      SCOPED_TRACE(std::to_string(begin) + " " + std::to_string(more));
      Session s = session(200);
      s.prune_range(begin, end, shift);
      s.append(ids(more));
      EXPECT_EQ(round_trip(s).computed, 0u);
    }
  }
  Session s = session(192);
  s.prune_range(3, 9, false);
  EXPECT_EQ(round_trip(s).restored.recomputed, 0);
  Session steered = session(100);
  Intervention steer;
  steer.point = Point::resid_pre;
  steer.layers = {1};
  steer.values = std::make_shared<const std::vector<float>>(
      static_cast<size_t>(model_->config().hidden_size), 0.25f);
  steered.attach(steer);
  round_trip(steered);
  steered.append(ids(100));
  EXPECT_EQ(round_trip(steered).fetched, 3u);
}

TEST_F(StoreSessions, EditedBlocksAreInTheStateRecord) {
  Session s = session(150);
  s.set_value(1, 0, 70, std::vector<float>(static_cast<size_t>(model_->config().head_dim), 0.5f));
  EXPECT_EQ(round_trip(s).restored.recomputed, 0);
  EXPECT_EQ(block_files().size(), 0u);
}

TEST_F(StoreSessions, BlocksAreStoredOnce) {
  Session s = session(200);
  EXPECT_EQ(put_session(*store_, s, {}).written, 3u);
  Session fork = s.fork();
  fork.append(ids(100));
  const StorePutReport report = put_session(*store_, fork, {});
  EXPECT_EQ(report.present, 3u);
  EXPECT_EQ(report.written, 1u);
  EXPECT_EQ(block_files().size(), 4u);
}

TEST_F(StoreSessions, WhateverHappensToBlocksTheyAreComputedAndItIsTold) {
  Session s = session(300), other = session(300);
  other.rewind(0);
  other.append(std::vector<int32_t>(256, 9));
  const auto damage = [&](const std::function<void(std::vector<std::string>)>& how, size_t computed,
                          const std::string& why) {
    SCOPED_TRACE(why);
    for (const std::string& file : block_files()) fs::remove(file);
    const StoreRestoreReport r = round_trip(s, [&](const Sha256&) { how(block_files()); });
    EXPECT_EQ(r.computed, computed);
    EXPECT_EQ(r.fetched, 4 - computed);
    EXPECT_NE(r.text().find(why), std::string::npos) << r.text();
  };
  const auto change = [](const std::string& file, const std::function<void(std::string&)>& how) {
    std::string bytes = read_text(file);
    how(bytes);
    fs::remove(file);
    write_file(file, bytes);
  };
  damage([](auto files) { fs::remove(files[2]); }, 1, "1 was not in the store");
  damage(
      [](auto files) {
        for (const auto& f : files) fs::remove(f);
      },
      4, "4 were not in the store");
  damage([&](auto files) { change(files[0], [](std::string& b) { b[70000] ^= 1; }); }, 1,
         "1 was refused: ");
  damage([&](auto files) { change(files[1], [](std::string& b) { b.resize(b.size() / 2); }); }, 1,
         "bytes: expected");
  damage([&](auto files) { change(files[1], [](std::string& b) { b.resize(7); }); }, 1, "refused");
  damage([&](auto files) { fs::resize_file(files[3], 0); }, 1, "refused");
  damage(
      [&](auto files) {
        fs::rename(files[0], path_ + "/x");
        fs::rename(files[1], files[0]);
        fs::rename(path_ + "/x", files[1]);
      },
      2, "name: expected sha256:");
  damage(
      [&](auto files) {
        for (const std::string& file : files) fs::remove(file);
        const auto stranger = open(StoreKey::random());
        Session again = session(300);
        EXPECT_THROW(put_session(*stranger, again, {}), Error);  // another user's state
      },
      4, "HMAC: the record was not sealed with this store's key");
  // An owner of the key stores other bytes under these names. The state's own digests reveal it.
  damage(
      [&](auto files) {
        const auto ids = s.block_identities();
        for (const std::string& file : files) fs::remove(file);
        std::vector<Store::NewBlock> forged;
        for (int64_t b = 0; b < 4; ++b)
          forged.push_back({ids[static_cast<size_t>(b)].id, [&other, b] {
                              return std::span(other.kv().block(b),
                                               other.kv().shape().block_bytes());
                            }});
        store_->put_blocks(forged);
      },
      4, "4 held other bytes than the state");
}

TEST_F(StoreSessions, APutRepairsDamagedRecords) {
  Session s = session(200);
  const Sha256 place = put_session(*store_, s, {}).place;
  const std::string state = path_ + "/states/" + sha256_text(place).substr(7);
  fs::resize_file(block_files()[1], 5000);
  EXPECT_EQ(round_trip(s).computed, 1u);  // refused here; the next put repairs it
  EXPECT_EQ(put_session(*store_, s, {}).written, 1u);
  EXPECT_EQ(round_trip(s).computed, 0u);
  fs::resize_file(state, 100);
  EXPECT_THROW(store_->state(place), Error);
  put_session(*store_, s, {});
  EXPECT_EQ(store_->state(place).blocks.size(), 3u);
}

// A copy in another directory of the same file system shares the bytes.
TEST_F(StoreSessions, ACopyInAnotherDirectorySharesTheBytes) {
  Session s = session(300);
  const Sha256 place = put_session(*store_, s, {}).place;
  create_store(scratch_ / "other", 0);
  Store other(open_store_backend(scratch_ / "other"), key_, kAlways);
  EXPECT_EQ(copy_state(*store_, other, place).blocks, 4u);
  for (const std::string& file : block_files()) {
    struct stat info = {};
    ASSERT_EQ(::stat(file.c_str(), &info), 0);
    EXPECT_LE(info.st_nlink, 2u);  // 2: a hard link; 1: the file system cloned the bytes
    const std::string copy = scratch_ / "other/blocks/" + fs::path(file).filename().string();
    EXPECT_EQ(read_text(file), read_text(copy));
    fs::remove(file);
  }
  const StoreSnapshot from = open_snapshot(other, place);
  StoreRestoreReport report;
  Session again = restore_session(other, *from.snapshot, model_, {}, &report);
  expect_equal(again, s);
  EXPECT_EQ(report.fetched, 4u);
  EXPECT_EQ(copy_state(other, *store_, place).blocks, 4u);
  EXPECT_EQ(round_trip(s).computed, 0u);
  EXPECT_EQ(block_files().size(), 4u);
}

// Records of another version are not used, even if their HMAC is correct.
TEST_F(StoreSessions, RecordsOfAnotherVersionAreAsGoodAsNone) {
  Session s = session(300);
  const Sha256 place = put_session(*store_, s, {}).place;
  const auto become_version_1 = [&](const char* kind) {
    for (const auto& e : fs::directory_iterator(path_ + "/" + kind)) {
      const std::string file = e.path().string(), text = read_text(file);
      const auto old = as_bytes(text);
      std::vector<std::byte> bytes(old.begin(), old.end());
      bytes[kVersionAt] = std::byte{1};
      seal_again(key_, bytes);
      write_file(file, text_of(bytes));
    }
  };
  const std::string refused = "version: expected 2, found 1";
  become_version_1("blocks");
  const StoreSnapshot from = open_snapshot(*store_, place);
  StoreRestoreReport report;
  Session again = restore_session(*store_, *from.snapshot, model_, {}, &report);
  expect_equal(again, s);
  EXPECT_EQ(report.fetched, 0u);
  EXPECT_EQ(report.computed, 4u);
  ASSERT_FALSE(report.reasons.empty());
  EXPECT_NE(report.reasons[0].find(refused), std::string::npos) << report.reasons[0];
  become_version_1("states");
  const std::string error = error_of([&] { open_snapshot(*store_, place); });
  EXPECT_NE(error.find(refused), std::string::npos) << error;
}

TEST_F(StoreSessions, AFileThatChangesWhileItIsMappedIsFoundOut) {
  Session s = session(300);
  const Sha256 place = put_session(*store_, s, {}).place;
  const StoreSnapshot from = open_snapshot(*store_, place);
  Session again = restore_session(*store_, *from.snapshot, model_, {}, nullptr);
  fs::resize_file(block_files()[0], 5000);
  again.append(ids(3));
  s.append(ids(3));
  EXPECT_EQ(digests_of(again).state, digests_of(s).state);
  EXPECT_EQ(again.take_healed().size(), 1u);
}

TEST_F(StoreSessions, ABudgetIsNeverExceeded) {
  const std::string small = scratch_ / "small";
  const uint64_t block = session(64).kv().shape().block_bytes() + kBlockFront;
  create_store(small, 3 * block + block / 2);
  int64_t clock = 1000;
  const StoreClock now = [&clock] { return ++clock; };
  store_ = std::make_unique<Store>(open_store_backend(small, now), key_,
                                   StoreOptions{now, 0, FetchChoice::always, StoreEncoding::never});
  const auto total = [&] {
    uint64_t bytes = 0;
    for (const auto& e : fs::directory_iterator(small + "/blocks")) bytes += e.file_size();
    return bytes;
  };
  Session s = session(300);
  const StoreRestoreReport r = round_trip(s);
  EXPECT_EQ(total(), 3 * block);
  EXPECT_EQ(r.computed, 1u);
  Session other = session(1);
  other.append(std::vector<int32_t>(128, 9));
  EXPECT_EQ(round_trip(other).computed, 0u);  // the least recently used blocks were evicted
  EXPECT_EQ(total(), 3 * block);
}

TEST_F(StoreTest, SettingANameRequiresItsPresentValue) {
  Session a = session(70), b = session(80);
  const Sha256 first = put_session(*store_, a, {}).place,
               second = put_session(*store_, b, {.parent = first, .note = "more"}).place;
  store_->set_name("talk", std::nullopt, first);
  EXPECT_EQ(store_->resolve("talk"), first);
  store_->set_name("talk", first, second);
  EXPECT_EQ(store_->history("talk").size(), 2u);
  const auto digits = [](const Sha256& s, size_t n) { return sha256_text(s).substr(7, n); };
  EXPECT_EQ(error_of([&] { store_->set_name("talk", first, first); }),
            "mismatch: dir:" + path_ + ": name talk: expected state " + digits(first, 16) +
                ", found state " + digits(second, 16) +
                ", which another writer has set in the meantime");
  EXPECT_EQ(store_->resolve(digits(second, 10)), second);
  EXPECT_EQ(error_of([&] { store_->resolve("nobody"); }),
            "io: dir:" + path_ + ": nobody: no such state is in the store");
  EXPECT_THROW(store_->set_name("../x", std::nullopt, first), Error);
  EXPECT_THROW(store_->set_name("abcdef12", std::nullopt, first), Error);
  EXPECT_EQ(store_->names(), std::vector<std::string>{"talk"});
  EXPECT_EQ(store_->state(second).parent, first);
  EXPECT_EQ(store_->state(second).note, "more");
  store_->set_name("talk", second, std::nullopt);
  EXPECT_EQ(store_->names(), std::vector<std::string>());
}

TEST_F(StoreTest, ATenantFindsNothingOfAnother) {
  Session s = session(200);
  Store alice(open_store_backend(path_), key_.for_tenant("alice"), kAlways),
      bob(open_store_backend(path_), key_.for_tenant("bob"), kAlways);
  const StorePutReport of_alice = put_session(alice, s, {});
  EXPECT_NE(of_alice.place, of_alice.digests.id);
  const StorePutReport of_bob = put_session(bob, s, {});
  EXPECT_EQ(of_bob.written, 3u);
  EXPECT_NE(of_bob.place, of_alice.place);
  EXPECT_FALSE(store_->has_state(of_alice.digests.id));
  // A collection handles every tenant's records without the tenant's salt.
  store_->set_name("kept", std::nullopt, of_alice.place);
  GcOptions now;
  now.grace = -10;
  const GcReport report = store_->gc(now);
  EXPECT_EQ(report.states, 1u);
  EXPECT_EQ(report.blocks, 3u);
  const StoreSnapshot from = open_snapshot(alice, of_alice.place);
  StoreRestoreReport r;
  restore_session(alice, *from.snapshot, model_, {}, &r);
  EXPECT_EQ(r.fetched, 3u);
  // The state's record names its blocks to users of the store who do not know the tenant's salt.
  Store plain(open_store_backend(path_), key_, kAlways);
  restore_session(plain, *from.snapshot, model_, {}, &r, &from.record);
  EXPECT_EQ(r.fetched, 3u);
}

TEST(BlockMemory, ReusesFreedMemory) {
  constexpr size_t kBlock = (size_t{2} << 20) + 4096;
  std::shared_ptr<Memory> last;
  {
    BlockMemory blocks(2 * kBlock);
    std::vector<std::shared_ptr<Memory>> held;
    std::vector<const std::byte*> places;
    for (int i = 0; i < 3; ++i) {
      held.push_back(blocks.take(kBlock - 5));
      ASSERT_EQ(held.back()->size(), kBlock);
      held.back()->data()[kBlock - 6] = std::byte{1};
      places.push_back(held.back()->data());
    }
    EXPECT_NE(blocks.take(4096)->data(), nullptr);
    held.clear();
    const std::set<const std::byte*> others(places.begin(), places.end());
    const auto other = blocks.take(2 * kBlock);
    EXPECT_EQ(other->size(), 2 * kBlock);
    const auto first = blocks.take(kBlock), second = blocks.take(kBlock - 4095);
    EXPECT_NE(first->data(), second->data());
    EXPECT_TRUE(others.contains(first->data()) && others.contains(second->data()));
    // The memory of two of the three released blocks was kept for reuse, so this one is new.
    last = blocks.take(kBlock);
    last->data()[kBlock - 1] = std::byte{1};
  }
  EXPECT_EQ(last->data()[kBlock - 1], std::byte{1});
  last = nullptr;
}

TEST_F(StoreTest, ALeaseKeepsUnnamedStates) {
  Session s = session(100);
  const Sha256 place = put_session(*store_, s, {}).place;
  GcOptions now;
  now.grace = -10;
  {
    const Store::Lease lease = store_->lease({&place, 1}, 60);
    EXPECT_EQ(store_->gc(now).states, 0u);
  }
  EXPECT_EQ(store_->gc(now).states, 1u);
  EXPECT_EQ(block_files().size(), 0u);
}

// The parents and blocks of a state that cannot be read are unknown, and may be whole.
TEST_F(StoreTest, ACollectionRemovesNothingBelowAStateThatCannotBeRead) {
  const std::vector<std::byte> bytes(4096, std::byte{7});
  std::vector<Sha256> chain(3);
  for (size_t i = 0; i < chain.size(); ++i) {
    chain[i].bytes.fill(static_cast<std::byte>(i + 1));
    store_->put_blocks(std::vector<Store::NewBlock>{{chain[i], [&] { return std::span(bytes); }}});
    StateRecord record;
    record.parent = i == 0 ? Sha256() : chain[i - 1];
    record.blocks = {chain[i]};
    store_->put_state(chain[i], record);
  }
  store_->set_name("talk", std::nullopt, chain[2]);
  GcOptions now;
  now.grace = -10;
  for (const size_t damaged : {1, 2}) {
    const std::string file = path_ + "/states/" + sha256_text(chain[damaged]).substr(7);
    const std::string whole = read_text(file);
    for (const size_t at : {kVersionAt, whole.size() - 1}) {
      std::string text = whole;
      text[at] = static_cast<char>(text[at] + 1);
      write_file(file, text);
      const GcReport report = store_->gc(now);
      EXPECT_EQ(report.states + report.blocks, 0u);
      EXPECT_EQ(report.kept_states + report.kept_blocks, 6u);
      ASSERT_EQ(report.refused.size(), 1u);
      EXPECT_TRUE(report.refused[0].ends_with(" (name talk leads to it)")) << report.refused[0];
    }
    write_file(file, damaged == 1 ? whole : whole + "x");
  }
  store_->set_name("talk", chain[2], std::nullopt);
  const GcReport report = store_->gc(now);  // nothing leads to the damaged state any more
  EXPECT_EQ(report.states + report.blocks, 6u);
}

TEST_F(StoreTest, ANameThatCannotBeReadCanBeRemoved) {
  const Sha256 id = store_->put_state({}, {});
  store_->set_name("talk", std::nullopt, id);
  const std::string file = path_ + "/names/talk", whole = read_text(file);
  const std::string where = "dir:" + path_ + " name talk: ",
                    hint = "stet store names talk --remove removes the name";
  for (const auto& [text, reason] : std::vector<std::pair<std::string, std::string>>{
           {"junk", "mismatch"}, {whole + "x", "format"}, {"", "format"}}) {
    write_file(file, text);
    EXPECT_EQ(store_->names(), std::vector<std::string>{"talk"});
    for (const auto& call : std::vector<std::function<void()>>{[&] { store_->history("talk"); },
                                                               [&] { store_->gc({}); }}) {
      const std::string error = error_of(call);
      EXPECT_NE(error.find(where), std::string::npos) << error;
      EXPECT_TRUE(error.ends_with(hint)) << error;
    }
    store_->remove_name("talk");
    EXPECT_TRUE(store_->names().empty());
    EXPECT_EQ(store_->gc({}).refused, std::vector<std::string>());
  }
  EXPECT_EQ(error_of([&] { store_->remove_name("talk"); }),
            "io: dir:" + path_ + ": talk: no such state is in the store");
}

TEST(StoreUrl, ErrorsDoNotShowAPassword) {
  for (const std::string url :
       {"rediss://bob:s3cret@h/x", "Redis://bob:s3cret@h/x", "REDIS:/bob:s3cret@h/x",
        "http://bob:s3cret@h", "dir:redis://bob:s3cret@h/x", "redis://bob:s3cret@h:1x",
        "redis://bob:s3cret@", "redis://bob:s3/cret@h", "redis:bob:s3cret@h"}) {
    const std::string error = error_of([&] { parse_store_url(url); });
    EXPECT_TRUE(error.starts_with("argument: store: expected ")) << error;
    EXPECT_EQ(error.find("s3"), std::string::npos) << error;
  }
  EXPECT_EQ(error_of([] { parse_store_url("rediss://bob:s3cret@h/x"); }),
            "argument: store: expected dir:PATH or redis://HOST[:PORT][/PREFIX], found "
            "rediss://...@h/x");
  EXPECT_EQ(error_of([] { create_store("redis://bob:s3cret@h/x", 1); }),
            "argument: redis://...@h/x: budget: a server has a budget of its own (maxmemory)");
  EXPECT_EQ(parse_store_url("dir:/home/me@work/store").path, "/home/me@work/store");
}

}  // namespace
}  // namespace stet::test::store_tests
