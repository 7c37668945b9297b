// Fetch or compute at run time. Whatever a store does with requested blocks and whatever the policy
// decides, a session has the same bytes. It reports where its blocks came from.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>

#include "src/store/fetch.hpp"
#include "src/store/payloads.hpp"
#include "stet/store/session.hpp"
#include "tests/support/models.hpp"

namespace stet::test::fetch_tests {
namespace {

namespace fs = std::filesystem;

// A directory backend that answers requests for blocks as a test prescribes.
class Scripted : public StoreBackend {
 public:
  explicit Scripted(const std::string& path) : inner_(open_store_backend(path)) {}

  using Blocks = std::vector<std::optional<StoredBytes>>;
  std::function<void(std::span<const Sha256>, const std::atomic<bool>& stop)> before =
      [](auto, const auto&) {};
  std::atomic<int> requests{0};

  void read_blocks(std::span<const Sha256> names, const std::atomic<bool>& stop,
                   const TakeBlock& take) override {
    ++requests;
    before(names, stop);
    inner_->read_blocks(names, stop, take);
  }

  const std::string& url() const override { return inner_->url(); }
  int64_t now() override { return inner_->now(); }
  Blocks read(RecordClass record_class, std::span<const Sha256> names) override {
    return inner_->read(record_class, names);
  }
  std::vector<bool> touch(RecordClass record_class, std::span<const Sha256> names) override {
    return inner_->touch(record_class, names);
  }
  size_t write(RecordClass record_class, std::span<const NewRecord> records) override {
    return inner_->write(record_class, records);
  }
  void list(RecordClass record_class, const std::function<void(const RecordInfo&)>& each) override {
    inner_->list(record_class, each);
  }
  bool remove(RecordClass record_class, const Sha256& name, int64_t since) override {
    return inner_->remove(record_class, name, since);
  }
  std::vector<std::string> names() override { return inner_->names(); }
  std::optional<std::vector<std::byte>> read_name(const std::string& name) override {
    return inner_->read_name(name);
  }
  bool replace_name(const std::string& name, const std::optional<std::vector<std::byte>>& expected,
                    const std::optional<std::vector<std::byte>>& next) override {
    return inner_->replace_name(name, expected, next);
  }
  void lease(const std::string& holder, std::span<const Sha256> states, int64_t until) override {
    inner_->lease(holder, states, until);
  }
  void release(const std::string& holder) override { inner_->release(holder); }
  std::vector<Sha256> leased() override { return inner_->leased(); }
  void tidy(int64_t before) override { inner_->tidy(before); }
  std::vector<std::pair<std::string, std::string>> about() override { return inner_->about(); }

 private:
  std::unique_ptr<StoreBackend> inner_;
};

class StoreFetch : public testing::Test {
 protected:
  StoreFetch() : model_(test::model(asset_path("pocket-gemma3"))) {
    create_store(path_, 0);
    backend_ = std::make_shared<Scripted>(path_);
    reopen({});
  }
  void reopen(const StoreOptions& options) {
    store_ = std::make_unique<Store>(backend_, key_, options);
  }
  static std::vector<int32_t> ids(int64_t size) { return stepped_ids(size, 37, 500, 0, 3); }
  Session session(int64_t size) const {
    Session s(model_, {.capacity = 2048});
    s.append(ids(size));
    return s;
  }
  StoreRestoreReport restore(const StoreSnapshot& from, Session& expected) {
    StoreRestoreReport r;
    Session again = restore_session(*store_, *from.snapshot, model_, {}, &r);
    EXPECT_EQ(digests_of(again).state, digests_of(expected).state);
    EXPECT_EQ(r.fetched + r.computed, static_cast<size_t>(expected.size() / 64));
    return r;
  }
  StoreSnapshot put(Session& s) {
    return open_snapshot(*store_, put_session(*store_, s, {}).place);
  }
  // Gives the meter so many samples of these costs, in seconds per token and per byte, that they
  // outweigh its other samples.
  void costs(double token, double byte) {
    store_->meter().learn([&](FetchPolicy& p) {
      for (int i = 0; i < 200; ++i) {
        p.computed(0, 1, token);
        p.answered(1e-9);
        p.fetched(1, byte);
      }
    });
  }

  TemporaryDirectory scratch_;
  const std::string path_ = scratch_ / "store";
  const StoreKey key_ = StoreKey::random();
  std::shared_ptr<const Model> model_;
  std::shared_ptr<Scripted> backend_;
  std::unique_ptr<Store> store_;
};

TEST_F(StoreFetch, ComputesWhenThatIsFaster) {
  Session s = session(300);
  const StoreSnapshot from = put(s);
  costs(1e-6, 1);
  backend_->requests = 0;
  backend_->before = [](auto, const std::atomic<bool>& stop) {
    while (!stop) std::this_thread::yield();
  };
  const StoreRestoreReport r = restore(from, s);
  EXPECT_EQ(r.text(), "0 blocks fetched, 4 computed (4 were faster to compute)");
  EXPECT_EQ(r.restored.recomputed, 300);
  // The store may send one request, to measure whether the backend has become faster.
  EXPECT_LE(backend_->requests, 1);
  backend_->before = [](auto, const auto&) {};
  reopen({.fetch = FetchChoice::always});
  EXPECT_EQ(restore(from, s).text(), "4 blocks fetched, 0 computed");
  reopen({});
  costs(1, 1e-9);
  EXPECT_EQ(restore(from, s).text(), "4 blocks fetched, 0 computed");
}

// At similar speeds, the first blocks are computed and the rest are fetched. Timing decides where
// the fetched ones begin, but changes no bit.
TEST_F(StoreFetch, BothAtOnceGiveTheSameBytes) {
  Session s = session(1500);
  const StoreSnapshot from = put(s);
  const double block = static_cast<double>(s.kv().shape().block_bytes());
  for (const double share : {0.2, 0.5, 1.0, 2.0, 5.0}) {
    costs(0.05, share * 0.05 * 64 / block);
    restore(from, s);
  }
}

TEST_F(StoreFetch, AStoreThatHangsIsNotWaitedForTwice) {
  Session s = session(1000);
  const StoreSnapshot from = put(s);
  backend_->before = [](auto, const std::atomic<bool>& stop) {
    while (!stop) std::this_thread::yield();
    throw Error(ErrorKind::io, "", "", "an answer", "stop");
  };
  EXPECT_EQ(restore(from, s).text(), "0 blocks fetched, 15 computed (15 did not come in time)");
}

TEST_F(StoreFetch, ABlockThatDoesNotArriveIsComputed) {
  Session s = session(1000);
  const StoreSnapshot from = put(s);
  backend_->before = [&](std::span<const Sha256> names, const std::atomic<bool>& stop) {
    const bool first = std::ranges::count(names, from.record.blocks[0]) > 0;
    while (first && !stop) std::this_thread::yield();  // only the request for the first block hangs
  };
  const StoreRestoreReport r = restore(from, s);
  EXPECT_GE(r.computed, 1u);
  EXPECT_NE(r.text().find("did not come in time"), std::string::npos) << r.text();
}

TEST_F(StoreFetch, AStoreThatFailsInTheMiddleIsDoneWithout) {
  Session s = session(1000);
  const StoreSnapshot from = put(s);
  const Sha256 bad = from.record.blocks[9];
  backend_->before = [&](std::span<const Sha256> names, const std::atomic<bool>&) {
    if (std::ranges::count(names, bad) > 0)
      throw Error(ErrorKind::io, "the store", "", "an answer", "none");
  };
  for (const FetchChoice choice : {FetchChoice::by_costs, FetchChoice::always}) {
    reopen({.fetch = choice});
    const StoreRestoreReport r = restore(from, s);
    EXPECT_GE(r.computed, 6u);
    EXPECT_NE(r.text().find("(the store: expected an answer, found none"), std::string::npos)
        << r.text();
  }
}

TEST_F(StoreFetch, AnErrorThatIsNotTheStoresIsThrown) {
  Session s = session(200);
  const StoreSnapshot from = put(s);
  backend_->before = [](auto, const auto&) { throw std::bad_alloc(); };
  EXPECT_THROW(restore_session(*store_, *from.snapshot, model_, {}, nullptr), std::bad_alloc);
}

TEST_F(StoreFetch, APrefixThatIsFasterToComputeIsLeft) {
  Session s = session(1000);
  put(s);
  const SessionOptions options{.capacity = 2048};
  const std::vector<int32_t> prompt = ids(900);
  costs(1, 1e-9);
  const std::optional<Session> found = fetch_prefix(*store_, model_, options, prompt, 100);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->size(), 896);
  costs(1e-9, 1);
  EXPECT_FALSE(fetch_prefix(*store_, model_, options, prompt, 100).has_value());
  reopen({.fetch = FetchChoice::always});
  EXPECT_TRUE(fetch_prefix(*store_, model_, options, prompt, 100).has_value());
  EXPECT_FALSE(fetch_prefix(*store_, model_, options, prompt, 896).has_value());
  backend_->before = [](auto, const auto&) {
    throw Error(ErrorKind::io, "the store", "", "an answer", "none");
  };
  EXPECT_EQ(error_of([&] { fetch_prefix(*store_, model_, options, prompt, 100); }),
            "io: the store: expected an answer, found none");
}

// ---------------------------------------------------------------- compressed

uint64_t bytes_in(const std::string& directory) {
  uint64_t bytes = 0;
  for (const auto& e : fs::directory_iterator(directory)) bytes += e.file_size();
  return bytes;
}

TEST_F(StoreFetch, CompressedBlocksAreTheSame) {
  if (!have_zlib()) GTEST_SKIP() << "built without zlib";
  uint64_t plain = 0;
  for (const KvType type : {KvType::f32, KvType::bf16, KvType::f16}) {
    for (const StoreEncoding encoding : {StoreEncoding::never, StoreEncoding::always}) {
      SCOPED_TRACE(kv_type_name(type));
      reopen({.encoding = encoding});
      for (const auto& e : fs::directory_iterator(path_ + "/blocks")) fs::remove(e.path());
      Session s(model_, {.capacity = 2048, .kv_type = type});
      s.append(ids(300));
      s.prune_range(10, 80, false);
      const StoreSnapshot from = put(s);
      const uint64_t bytes = bytes_in(path_ + "/blocks");
      if (encoding == StoreEncoding::never)
        plain = bytes;
      else
        EXPECT_LT(bytes, plain);
      StoreRestoreReport r;
      Session again = restore_session(*store_, *from.snapshot, model_, {}, &r);
      EXPECT_EQ(digests_of(again).state, digests_of(s).state);
      EXPECT_EQ(r.computed, 0u) << r.text();
    }
  }
}

TEST_F(StoreFetch, ASlowWireIsCompressedFor) {
  if (!have_zlib()) GTEST_SKIP() << "built without zlib";
  const auto encoding_of = [&](const Sha256& place) {
    const auto found = backend_->read(RecordClass::blocks, {&place, 1})[0];
    return open_record(key_, RecordKind::block, place, found->bytes, "r").encoding;
  };
  Session s = session(70), t(model_, {.capacity = 2048});
  t.append(std::vector<int32_t>(70, 9));
  store_->meter().learn([](FetchPolicy& p) {
    for (int i = 0; i < 200; ++i) p.written(1 << 20, 1e-4), p.fetched(1 << 20, 1e-4);
  });
  EXPECT_EQ(encoding_of(put(s).record.blocks[0]), 0u);
  store_->meter().learn([](FetchPolicy& p) {
    for (int i = 0; i < 200; ++i) p.written(1 << 20, 10);
  });
  EXPECT_EQ(encoding_of(put(t).record.blocks[0]), 1u);
  reopen({.fetch = FetchChoice::always});
  EXPECT_EQ(restore(put(t), t).fetched, 1u);
}

// A malicious owner of the writers' key cannot make readers allocate more memory than a block has.
TEST(StoreEncodedBlock, AFalseSizeIsRefused) {
  if (!have_zlib()) GTEST_SKIP() << "built without zlib";
  std::vector<std::byte> block(size_t{1} << 16);
  for (size_t i = 0; i < block.size(); i += 5) block[i] = std::byte{7};
  const std::vector<std::byte> packed = encode_block(block);
  ASSERT_FALSE(packed.empty());
  const StoredBytes again = decode_block(packed, "r");
  EXPECT_TRUE(std::ranges::equal(again.bytes, block));
  for (size_t size = 0; size < packed.size(); ++size)
    EXPECT_THROW(decode_block(std::span(packed).first(size), "r"), Error) << size;
  const auto said = [&](uint64_t bytes) {
    std::vector<std::byte> lie = packed;
    for (size_t i = 0; i < 8; ++i) lie[i] = static_cast<std::byte>(bytes >> (8 * i));
    return error_of([&] { decode_block(lie, "r"); });
  };
  const std::string most = std::to_string((packed.size() - 8) * 1100);
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{6}, uint64_t{1} << 40, ~uint64_t{0}})
    EXPECT_EQ(said(bytes), "format: r: expanded bytes: expected a multiple of 4 in 4.." + most +
                               ", found " + std::to_string(bytes));
  EXPECT_EQ(said(block.size() - 4).find("format: r: planes: "), 0u);
  EXPECT_EQ(said(block.size() + 4).find("format: r: planes: "), 0u);
  EXPECT_TRUE(encode_block({}).empty());
  EXPECT_TRUE(encode_block(std::span(block).first(7)).empty());
}

}  // namespace
}  // namespace stet::test::fetch_tests
