// A store on real servers of the Redis protocol. Everything acknowledged survives the death of a
// primary, and states come back bit for bit whatever else a server does. STET_SCHEDULES sets the
// operations of each of 8 processes (default 40).
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <thread>

#ifdef STET_HAVE_HIREDIS
#include <array>
#include <chrono>
#include <fstream>
#include <random>

#include "src/store/redis_record.hpp"
#include "stet/store/record.hpp"
#include "stet/store/session.hpp"
#include "tests/store/redis_servers.hpp"
#include "tests/support/models.hpp"

namespace stet::test::redis_tests {
namespace {

const StoreKey kKey = [] {
  StoreKey key;
  key.writers.fill(std::byte{7});
  return key;
}();

std::unique_ptr<Store> open_redis(const std::string& url, const StoreKey& key = kKey) {
  StoreOptions o;
  o.fetch = FetchChoice::always;
  return std::make_unique<Store>(open_store_backend(url), key, o);
}

class RedisStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!have_redis_server()) GTEST_SKIP() << "no redis-server and redis-cli here";
    server_ = std::make_unique<RedisServer>(std::vector<std::string>{"--appendonly", "no"});
    create_store(server_->url(), 0);
    store_ = open_redis(server_->url());
    model_ = test::model(asset_path("pocket-gemma3"));
  }
  Session session(int64_t size, int32_t first = 3) const {
    Session s(model_, {.capacity = 2048});
    s.append(stepped_ids(size, 37, 500, 0, first));
    return s;
  }
  StoreRestoreReport restore(const Sha256& place, Session& expected) {
    const StoreSnapshot from = open_snapshot(*store_, place);
    return restore(from, expected);
  }
  StoreRestoreReport restore(const StoreSnapshot& from, Session& expected) {
    StoreRestoreReport r;
    Session again = restore_session(*store_, *from.snapshot, model_, {}, &r);
    EXPECT_EQ(digests_of(again).state, digests_of(expected).state);
    return r;
  }
  static std::string chunk(const Sha256& place) {
    return "test:b:{" + sha256_text(place).substr(7) + "}:0";
  }

  std::unique_ptr<RedisServer> server_;
  std::unique_ptr<Store> store_;
  std::shared_ptr<const Model> model_;
};

// Values of the specification, https://redis.io/docs/reference/cluster-spec (0x31C3 for the
// digits).
TEST(RedisSlot, IsThatOfTheSpecification) {
  EXPECT_EQ(redis_slot("123456789"), 0x31C3u % 16384);
  EXPECT_EQ(redis_slot("{user1000}.following"), redis_slot("{user1000}.followers"));
  EXPECT_EQ(redis_slot("foo{}{bar}"), redis_slot("foo{}{bar}"));
  EXPECT_NE(redis_slot("foo{}{bar}"), redis_slot("bar"));
  EXPECT_EQ(redis_slot("foo{bar}{zap}"), redis_slot("bar"));
}

// A server that gives one fixed answer to any request and then closes the connection. Only to a
// request for a cluster's slots it answers that it is no cluster.
class FakeServer {
 public:
  explicit FakeServer(std::string answer) : answer_(std::move(answer)) {
    listening_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ::bind(listening_, reinterpret_cast<sockaddr*>(&address), size);
    ::getsockname(listening_, reinterpret_cast<sockaddr*>(&address), &size);
    ::listen(listening_, 8);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~FakeServer() {
    ::shutdown(listening_, SHUT_RDWR);
    thread_.join();
    ::close(listening_);
  }
  StoreUrl url() const { return parse_store_url("redis://127.0.0.1:" + std::to_string(port_)); }

 private:
  void serve() {
    for (int fd; (fd = ::accept(listening_, nullptr, nullptr)) >= 0; ::close(fd)) {
      std::array<char, 4096> asked;
      for (ssize_t n; (n = ::recv(fd, asked.data(), asked.size(), 0)) > 0;) {
        const bool slots = std::string_view(asked.data(), static_cast<size_t>(n)).find("SLOTS") !=
                           std::string::npos;
        const std::string& answer = slots ? no_cluster_ : answer_;
        ::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
        if (!slots) break;
      }
    }
  }

  const std::string answer_, no_cluster_ = "-ERR This instance has cluster support disabled\r\n";
  int listening_ = -1, port_ = 0;
  std::thread thread_;
};

TEST(RedisValues, AreReceivedWhereTheyAreToLie) {
  const std::string large(100000, 'x');
  const FakeServer server("$100000\r\n" + large + "\r\n$-1\r\n$3\r\nabc\r\n-ERR no\r\n$0\r\n\r\n");
  std::array<std::string, 5> found;
  std::vector<RedisCommand> gets;
  for (size_t i = 0; i < found.size(); ++i) {
    gets.push_back({{"GET", "key"}});
    gets.back().place = [&to = found[i], i](size_t bytes, std::span<const std::byte> head) {
      EXPECT_EQ(head.size(), std::min(bytes, kRedisHead));
      to.resize(i == 2 ? 0 : bytes);  // useless values
      return std::as_writable_bytes(std::span(to));
    };
  }
  RedisClient client(server.url());
  const std::vector<RedisReply> replies = client.run(gets, 10);
  EXPECT_EQ(replies[0]->integer, 100000);
  EXPECT_EQ(found[0], large);
  EXPECT_EQ(replies[1]->type, REDIS_REPLY_NIL);
  EXPECT_EQ(replies[2]->integer, 3);
  EXPECT_EQ(replies[3]->type, REDIS_REPLY_ERROR);
  EXPECT_EQ(replies[4]->type, REDIS_REPLY_INTEGER);
}

TEST(RedisValues, MalformedAnswersAreRefused) {
  for (const std::string& answer : std::vector<std::string>{
           "", "$", "$5\r\nhel", "$5\r\nhelloXX", "$5\r\nhello\r\nmore",
           "$99999999999999999999\r\n", "$999999999999\r\nx", "$-2\r\n", "$x\r\n", "*2\r\n",
           "+OK\r\n", ":1\r\n", "\r\n", std::string(5000, 'a'), std::string("\0\r\n", 3)}) {
    SCOPED_TRACE(answer.substr(0, 20));
    const FakeServer server(answer);
    std::string to;
    RedisCommand get{{"GET", "key"}};
    get.place = [&](size_t bytes, auto) {
      to.resize(bytes < 100 ? bytes : 0);
      return std::as_writable_bytes(std::span(to));
    };
    RedisClient client(server.url());
    EXPECT_THROW(client.run(get, 0.1), Error);
  }
}

// A sealed block with a payload of `payload` bytes, and the record that a reader assembles from its
// chunks.
struct Arriving {
  explicit Arriving(size_t payload) : bytes(payload) {
    std::mt19937 random(static_cast<unsigned>(payload));
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    const std::vector<std::byte> front = seal_record(kKey, {RecordKind::block, {}, 0, bytes});
    bytes.insert(bytes.begin(), front.begin(), front.end());
  }
  std::span<const std::byte> chunk(size_t n) const {
    const size_t at = n * kRedisChunk;
    return std::span(bytes).subspan(at, std::min(kRedisChunk, bytes.size() - at));
  }
  // Returns true if the record had a place for the chunk.
  bool receive(size_t n, std::span<const std::byte> value) {
    const auto to = record.place(n, value.size(), value.first(std::min(value.size(), kRedisHead)));
    std::ranges::copy(value.first(to.size()), to.begin());
    record.set_received(n);
    return !to.empty();
  }
  bool receive(size_t n) { return receive(n, chunk(n)); }
  bool is_whole() const { return found && std::ranges::equal(found->bytes, bytes); }
  bool is_refused() const { return found && found->bytes.empty(); }

  std::vector<std::byte> bytes;
  BlockMemory memory{0};
  int taken = 0;
  std::optional<StoredBytes> found;
  IncomingRecord record{memory, [this](std::optional<StoredBytes> r) {
                          ++taken;
                          found = std::move(r);
                        }};
};
constexpr size_t kThreeChunks = 2 * kRedisChunk + 5;

TEST(RedisRecord, IsCompleteWithItsLastChunk) {
  Arriving a(kThreeChunks);
  EXPECT_TRUE(a.receive(0));
  EXPECT_TRUE(a.receive(2));
  EXPECT_EQ(a.taken, 0);
  EXPECT_TRUE(a.record.is_missing(1));
  EXPECT_TRUE(a.receive(1));
  EXPECT_TRUE(a.is_whole());
  a.record.set_missing(1);
  a.record.end();
  EXPECT_EQ(a.taken, 1);
  Arriving one(100);
  EXPECT_TRUE(one.receive(0));
  EXPECT_TRUE(one.is_whole());
}

// While a slot moves, answers may arrive out of order. Chunks that arrive before chunk 0 count as
// missing and are requested again.
TEST(RedisRecord, ChunksBeforeTheFirstAreMissing) {
  Arriving a(kThreeChunks);
  EXPECT_FALSE(a.receive(1));
  EXPECT_EQ(a.record.chunks(), 0u);
  EXPECT_TRUE(a.receive(0));
  EXPECT_TRUE(a.receive(2));
  EXPECT_TRUE(a.record.is_missing(1));
  EXPECT_TRUE(a.receive(1));
  EXPECT_TRUE(a.is_whole());
}

TEST(RedisRecord, MoreChunksThanItHasAreNothing) {
  Arriving a(kThreeChunks);
  EXPECT_TRUE(a.receive(0));
  EXPECT_FALSE(a.receive(3, std::vector<std::byte>(10)));
  a.record.set_missing(4);
  EXPECT_EQ(a.taken, 0);
  EXPECT_TRUE(a.receive(1) && a.receive(2) && a.is_whole());
}

TEST(RedisRecord, WithAMissingChunkIsMissing) {
  for (const size_t n : {size_t{0}, size_t{2}}) {
    Arriving a(kThreeChunks);
    for (size_t i = 0; i < n; ++i) EXPECT_TRUE(a.receive(i));
    a.record.set_missing(n);
    EXPECT_EQ(a.taken, 1);
    EXPECT_FALSE(a.found.has_value());
  }
}

TEST(RedisRecord, WithAChunkOfAnotherSizeIsRefused) {
  for (const size_t n : {size_t{0}, size_t{1}, size_t{2}}) {
    Arriving a(kThreeChunks);
    for (size_t i = 0; i < n; ++i) EXPECT_TRUE(a.receive(i));
    EXPECT_FALSE(a.receive(n, a.chunk(n).first(a.chunk(n).size() - 1)));
    EXPECT_TRUE(a.is_refused()) << n;
  }
}

TEST(RedisRecord, InvalidBytesAreRefused) {
  Arriving claims(kThreeChunks), other(100);
  std::fill_n(claims.bytes.begin() + 80, 8, std::byte{255});  // the claimed payload size
  EXPECT_FALSE(claims.receive(0));
  EXPECT_TRUE(claims.is_refused());
  EXPECT_FALSE(other.receive(0, std::vector<std::byte>(7)));
  EXPECT_TRUE(other.is_refused());
}

TEST_F(RedisStoreTest, BlocksOfAnySizesComeInAnyOrder) {
  std::mt19937 random(3);
  std::vector<std::vector<std::byte>> payloads;
  std::vector<Store::NewBlock> blocks;
  std::vector<Sha256> ids;
  for (const size_t size : {size_t{70}, kThreeChunks, size_t{64}, kRedisChunk - kBlockFront,
                            kRedisChunk - kBlockFront + 1, 4 * kRedisChunk, size_t{80}})
    payloads.emplace_back(size);
  for (std::vector<std::byte>& payload : payloads) {
    for (std::byte& b : payload) b = static_cast<std::byte>(random());
    ids.push_back(sha256_of(std::span(payload).first(64)));
    blocks.push_back({ids.back(), [&] { return std::span<const std::byte>(payload); }});
  }
  EXPECT_EQ(store_->put_blocks(blocks).written, blocks.size());
  for (int round = 0; round < 3; ++round) {
    for (const size_t at_once : {size_t{1}, ids.size()}) {
      for (size_t first = 0; first < ids.size(); first += at_once) {
        const std::vector<StoredBlock> found =
            store_->blocks(std::span(ids).subspan(first, at_once));
        for (size_t i = 0; i < at_once; ++i)
          EXPECT_TRUE(std::ranges::equal(found[i].bytes, payloads[first + i])) << found[i].refused;
      }
    }
  }
}

TEST_F(RedisStoreTest, StatesComeBackBitForBit) {
  for (const int64_t size : {1, 64, 300, 1500}) {
    Session s = session(size);
    const StorePutReport put = put_session(*store_, s, {});
    EXPECT_EQ(put.written + put.present, static_cast<size_t>(size / 64));
    const StoreRestoreReport r = restore(put.place, s);
    EXPECT_EQ(r.fetched, static_cast<size_t>(size / 64)) << r.text();
  }
}

TEST_F(RedisStoreTest, NamesLeasesAndCollection) {
  Session s = session(130), t = session(140, 9);
  const Sha256 a = put_session(*store_, s, {}).place, b = put_session(*store_, t, {}).place;
  store_->set_name("talk", std::nullopt, a);
  EXPECT_THROW(store_->set_name("talk", std::nullopt, b), Error);
  EXPECT_EQ(store_->resolve("talk"), a);
  EXPECT_EQ(store_->names(), std::vector<std::string>{"talk"});
  GcOptions now;
  now.grace = -10;
  {
    const Store::Lease lease = store_->lease({&b, 1}, 60);
    EXPECT_EQ(store_->gc(now).states, 0u);
  }
  const GcReport r = store_->gc(now);
  EXPECT_EQ(r.states, 1u);
  EXPECT_EQ(r.blocks, 2u);
  EXPECT_EQ(restore(a, s).fetched, 2u);
  store_->set_name("talk", a, std::nullopt);
  EXPECT_EQ(store_->names(), std::vector<std::string>());
}

TEST_F(RedisStoreTest, DamagedBlocksAreRecomputedAndReported) {
  Session s = session(300);
  const Sha256 place = put_session(*store_, s, {}).place;
  const std::vector<Sha256> blocks = store_->state(place).blocks;
  server_->ask({"SETRANGE", chunk(blocks[0]), "90000", "xyz"});
  server_->ask({"SET", chunk(blocks[1]), server_->ask({"GET", chunk(blocks[2])})});
  server_->ask({"DEL", chunk(blocks[3])});
  const StoreRestoreReport r = restore(place, s);
  EXPECT_EQ(r.fetched, 1u);
  EXPECT_EQ(r.computed, 3u);
  EXPECT_NE(r.text().find("content: the bytes are not those that were sealed"), std::string::npos)
      << r.text();
  EXPECT_NE(r.text().find("name: expected sha256:"), std::string::npos);
  EXPECT_NE(r.text().find("1 was not in the store"), std::string::npos);
  server_->ask({"SET", chunk(blocks[0]), "short"});
  server_->ask({"DEL", chunk(blocks[1])});
  server_->ask({"LPUSH", chunk(blocks[1]), "a list"});
  EXPECT_EQ(restore(place, s).computed, 3u);
  EXPECT_EQ(put_session(*store_, s, {}).written, 3u);
  EXPECT_EQ(restore(place, s).computed, 0u);
}

// The chunks of two machines that write at once may alternate. The sealed header of either is valid
// with the chunks of the other.
TEST_F(RedisStoreTest, ChunksOfTwoWritersMakeARecord) {
  std::mt19937 random(1);
  std::vector<std::byte> payload((size_t{3} << 20) + 5);
  for (std::byte& b : payload) b = static_cast<std::byte>(random());
  const Sha256 id = sha256_of(std::span(payload).first(64));
  const Store::NewBlock block{id, [&] { return std::span<const std::byte>(payload); }};
  const auto chunk_at = [&](int n) {
    std::string key = chunk(store_->place(id));
    return key.replace(key.size() - 1, 1, std::to_string(n));
  };
  std::vector<std::string> first;
  EXPECT_EQ(store_->put_blocks({&block, 1}).written, 1u);
  for (int n = 0; n < 4; ++n) first.push_back(server_->ask({"GET", chunk_at(n)}));
  server_->ask({"DEL", chunk_at(0)});
  EXPECT_EQ(open_redis(server_->url())->put_blocks({&block, 1}).written, 1u);
  EXPECT_NE(server_->ask({"GET", chunk_at(0)}), first[0]);
  for (const int n : {1, 0, 3, 2}) {
    server_->ask({"SET", chunk_at(n), first[static_cast<size_t>(n)]});
    const std::vector<StoredBlock> found = store_->blocks({&id, 1});
    EXPECT_TRUE(std::ranges::equal(found[0].bytes, payload)) << n << found[0].refused;
  }
}

TEST_F(RedisStoreTest, AServerThatStopsOrHangsIsBypassed) {
  Session s = session(300);
  const StoreSnapshot from = open_snapshot(*store_, put_session(*store_, s, {}).place);
  Store quick(open_store_backend(server_->url()), kKey);
  server_->send(SIGSTOP);
  StoreRestoreReport late;
  Session again = restore_session(quick, *from.snapshot, model_, {}, &late);
  EXPECT_EQ(digests_of(again).state, digests_of(s).state);
  EXPECT_EQ(late.text(), "0 blocks fetched, 4 computed (4 did not come in time)");
  const auto start = std::chrono::steady_clock::now();
  const StoreRestoreReport hung = restore(from, s);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_EQ(hung.computed, 4u);
  EXPECT_NE(hung.text().find("no answer in time"), std::string::npos) << hung.text();
  server_->send(SIGCONT);
  EXPECT_EQ(restore(from, s).fetched, 4u);  // over a new connection
  server_->ask({"CLIENT", "KILL", "TYPE", "normal"});
  EXPECT_EQ(restore(from, s).fetched, 4u);
  server_->kill();
  EXPECT_EQ(restore(from, s).computed, 4u);
  server_->start();  // has lost all blocks
  EXPECT_EQ(restore(from, s).computed, 4u);
}

TEST_F(RedisStoreTest, AFullServerKeepsStatesAndDropsBlocks) {
  server_->ask({"CONFIG", "SET", "maxmemory", "6mb"});
  EXPECT_THROW(open_redis(server_->url()), Error);  // noeviction
  server_->ask({"CONFIG", "SET", "maxmemory-policy", "allkeys-lru"});
  EXPECT_EQ(error_of([&] { open_redis(server_->url()); }).find("unsupported: "), 0u);
  server_->ask({"CONFIG", "SET", "maxmemory-policy", "volatile-lru"});
  store_ = open_redis(server_->url());
  std::vector<Session> all;
  std::vector<Sha256> places;
  for (int32_t i = 0; i < 12; ++i) {
    all.push_back(session(260, i * 3));
    places.push_back(put_session(*store_, all.back(), {}).place);
  }
  size_t computed = 0;
  for (size_t i = 0; i < all.size(); ++i) computed += restore(places[i], all[i]).computed;
  EXPECT_GT(computed, 0u);
}

TEST_F(RedisStoreTest, AFullServerSaysSoAndStillHasItsStates) {
  const Sha256 id = store_->put_state({}, {});
  server_->ask({"CONFIG", "SET", "maxmemory-policy", "volatile-lru"});
  server_->ask({"CONFIG", "SET", "maxmemory", "1"});
  EXPECT_TRUE(store_->has_state(id));
  EXPECT_TRUE(store_->find_state(id).has_value());
  const std::string full = "the memory of the server is full (maxmemory)";
  EXPECT_TRUE(error_of([&] { store_->set_name("talk", std::nullopt, id); }).ends_with(full));
  EXPECT_TRUE(error_of([&] { store_->lease({&id, 1}, 60); }).ends_with(full));
  server_->ask({"CONFIG", "SET", "maxmemory", "0"});
  store_->set_name("talk", std::nullopt, id);
}

// The characters of patterns in a prefix stand for themselves.
TEST_F(RedisStoreTest, APrefixIsNoPattern) {
  const std::string server = server_->url().substr(0, server_->url().rfind('/') + 1);
  GcOptions now;
  now.grace = -10;
  std::vector<std::unique_ptr<Store>> stores;
  for (const char* prefix : {"t*", "team[1]", "te?t", "te\\st", "test[^a]"}) {
    create_store(server + prefix, 0);
    stores.push_back(open_redis(server + prefix));
    Store& store = *stores.back();
    const Sha256 id = store.put_state(sha256_of(as_bytes(std::string(prefix))), {});
    EXPECT_EQ(store.states().size(), 1u) << prefix;
    store.set_name("talk", std::nullopt, id);
    EXPECT_EQ(store.names(), std::vector<std::string>{"talk"}) << prefix;
    store.set_name("talk", id, std::nullopt);
    const Store::Lease lease = store.lease({&id, 1}, 60);
    EXPECT_EQ(store.backend().leased(), std::vector<Sha256>{id}) << prefix;
    EXPECT_EQ(store.gc(now).states, 0u) << prefix;
  }
  for (const auto& store : stores) {
    EXPECT_EQ(store->gc(now).states, 1u);
    EXPECT_EQ(store->gc(now).states, 0u);
  }
}

TEST_F(RedisStoreTest, OnlyWhatWasThereIsRemoved) {
  const Sha256 id = store_->put_state({}, {});
  for (const RecordClass of : {RecordClass::states, RecordClass::blocks}) {
    EXPECT_EQ(store_->backend().remove(of, id, INT64_MAX), of == RecordClass::states);
    EXPECT_FALSE(store_->backend().remove(of, id, INT64_MAX));
  }
}

// ---------------------------------------------------------------- a cluster

// Runs one process. Logs a line for everything that was acknowledged to it.
void operate(const std::string& url, unsigned seed, int operations, const std::string& log) {
  const auto store = open_redis(url);
  std::mt19937 random(seed);
  std::ofstream acknowledged(log);
  for (int i = 0; i < operations; ++i) {
    StateRecord record;
    record.note = std::to_string(seed) + "/" + std::to_string(i);
    const std::string bytes(1000 + random() % 100000, static_cast<char>('a' + random() % 26));
    const Sha256 id = sha256_of(as_bytes("state " + record.note)),
                 block = sha256_of(as_bytes("block " + record.note));
    const std::string name = "n" + record.note.replace(record.note.find('/'), 1, "-");
    try {
      record.blocks.push_back(block);
      store->put_blocks(
          std::vector<Store::NewBlock>{{block, [&bytes] { return as_bytes(bytes); }}});
      store->put_state(id, record);
      acknowledged << "state " << sha256_text(id) << " " << record.note << std::endl;
      if (random() % 2 == 0) {
        store->set_name(name, std::nullopt, id);
        acknowledged << "name " << name << " " << sha256_text(id) << std::endl;
      }
      for (const StoredBlock& b : store->blocks({&block, 1})) {
        if (!b.bytes.empty() && !std::ranges::equal(b.bytes, as_bytes(bytes)))
          acknowledged << "wrong" << std::endl;
      }
    } catch (const Error&) {
      // Not acknowledged.
    }
  }
}

TEST(RedisCluster, AcknowledgedWritesSurviveAPrimary) {
  if (!have_redis_server()) GTEST_SKIP() << "no redis-server and redis-cli here";
  RedisCluster cluster;
  ASSERT_TRUE(cluster.created);
  const std::string url = cluster.servers[1]->url();
  create_store(url, 0);
  const char* given = std::getenv("STET_SCHEDULES");
  const int operations = given == nullptr ? 40 : std::atoi(given);
  const TemporaryDirectory scratch;
  std::vector<pid_t> processes;
  for (unsigned p = 0; p < 8; ++p) {
    processes.push_back(::fork());
    if (processes.back() != 0) continue;
    operate(url, p, operations, scratch / std::to_string(p));
    ::_exit(0);
  }
  // Once all processes have started, a primary dies. It is not the one whose address the processes
  // were given.
  EXPECT_TRUE(eventually([&] {
    return std::ranges::all_of(std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}, [&](int p) {
      std::error_code ignored;
      return std::filesystem::file_size(scratch / std::to_string(p), ignored) > 200 && !ignored;
    });
  }));
  RedisServer* victim = nullptr;
  for (const auto& s : cluster.servers) {
    if (s.get() != cluster.servers[1].get() && s->ask({"ROLE"}).starts_with("master"))
      victim = s.get();
  }
  ASSERT_NE(victim, nullptr);
  victim->kill();
  for (const pid_t p : processes) {
    int status = 0;
    ::waitpid(p, &status, 0);
    EXPECT_EQ(status, 0);
  }
  const auto store = open_redis(url);
  size_t states = 0, names = 0;
  for (int p = 0; p < 8; ++p) {
    std::ifstream log(scratch / std::to_string(p));
    for (std::string what, a, b; log >> what;) {
      ASSERT_NE(what, "wrong");
      log >> a >> b;
      if (what == "state") {
        const auto record = store->find_state(*parse_sha256(a));
        ASSERT_TRUE(record.has_value()) << b;
        EXPECT_EQ(record->note, b);
        ++states;
      } else {
        EXPECT_EQ(sha256_text(store->resolve(a)), b);
        ++names;
      }
    }
  }
  EXPECT_GT(states, static_cast<size_t>(operations) * 4);
  EXPECT_GT(names, 0u);
}

TEST(RedisCluster, SlotsThatMoveAreFollowed) {
  if (!have_redis_server()) GTEST_SKIP() << "no redis-server and redis-cli here";
  RedisCluster cluster;
  ASSERT_TRUE(cluster.created);
  create_store(cluster.servers[0]->url(), 0);
  const auto store = open_redis(cluster.servers[0]->url());
  StateRecord record;
  record.note = "before";
  const Sha256 id = sha256_of(as_bytes("moved"));
  store->put_state(id, record);
  const std::string key = "test:s:{" + sha256_text(id).substr(7) + "}:0",
                    slot = std::to_string(redis_slot(key));
  RedisServer& from = cluster.primary_of(key);
  RedisServer* to = nullptr;
  for (const auto& s : cluster.servers) {
    if (s.get() != &from && s->ask({"ROLE"}).starts_with("master")) to = s.get();
  }
  ASSERT_NE(to, nullptr);
  const std::string from_id = from.ask({"CLUSTER", "MYID"}), to_id = to->ask({"CLUSTER", "MYID"});
  EXPECT_EQ(to->ask({"CLUSTER", "SETSLOT", slot, "IMPORTING", from_id}), "OK");
  EXPECT_EQ(from.ask({"CLUSTER", "SETSLOT", slot, "MIGRATING", to_id}), "OK");
  // In the middle of the move: the first key has moved and is requested from its new server; others
  // have not.
  EXPECT_EQ(from.ask({"MIGRATE", "127.0.0.1", std::to_string(to->port()), key, "0", "5000"}), "OK");
  EXPECT_EQ(store->state(id).note, "before");
  const std::string used = key.substr(0, key.size() - 1) + "used";
  from.ask({"MIGRATE", "127.0.0.1", std::to_string(to->port()), used, "0", "5000"});
  for (RedisServer* s : {to, &from})
    EXPECT_EQ(s->ask({"CLUSTER", "SETSLOT", slot, "NODE", to_id}), "OK");
  EXPECT_EQ(store->state(id).note, "before");
  EXPECT_TRUE(store->has_state(id));
}

}  // namespace
}  // namespace stet::test::redis_tests
#endif
