// Eight processes reply and store on real servers of the Redis protocol, single and as a cluster.
// Primaries are killed and come back, slots move, connections are cut, servers hang, memory runs
// out and the processes' clocks jump. Every reply must equal the one computed alone bit for bit,
// and everything acknowledged must be there afterwards. STET_CHAOS sets the operations of each
// process (default 12). Each continues until all faults have occurred.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <thread>

#ifdef STET_HAVE_HIREDIS
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "stet/store/session.hpp"
#include "tests/store/redis_servers.hpp"
#include "tests/support/models.hpp"

namespace {

int64_t clock_jump = 0;  // seconds by which this process's clock is wrong

}  // namespace

extern "C" time_t time(time_t* at) noexcept {
  timespec now = {};
  ::syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
  now.tv_sec += clock_jump;
  if (at != nullptr) *at = now.tv_sec;
  return now.tv_sec;
}

namespace stet::test::chaos_tests {
namespace {

constexpr int kProcesses = 8, kConversations = 6, kTurns = 3, kNames = 12;
constexpr int64_t kFarthestJump = 400 * 24 * 3600;  // far beyond the grace time
constexpr StoreTimeouts kPatience = {1, 10};

StoreKey chaos_key() {
  StoreKey key;
  key.writers.fill(std::byte{7});
  return key;
}

std::unique_ptr<Store> open_chaos(const std::string& url, StoreTimeouts patience = kPatience) {
  return std::make_unique<Store>(open_store_backend(url, nullptr, patience), chaos_key(),
                                 StoreOptions{nullptr, 1});
}

std::vector<int32_t> turn_ids(int conversation, int turn) {
  std::vector<int32_t> ids;
  for (int i = 0; i < 45 + 31 * conversation % 50; ++i)
    ids.push_back(3 + (conversation * 101 + turn * 53 + i * 37) % 500);
  return ids;
}

// Appends a message and then, one by one, the five most likely next tokens.
void reply(Session& session, std::span<const int32_t> ids) {
  session.append(ids);
  for (int i = 0; i < 5; ++i) {
    const std::span<const float> logits = session.logits();
    const auto best = std::ranges::max_element(logits) - logits.begin();
    session.append(std::vector<int32_t>{static_cast<int32_t>(best)});
  }
}

// Conversations that all processes know, computed alone.
class Alone {
 public:
  Alone() : model(test::model(asset_path("pocket-gemma3"))) {
    for (int c = 0; c < kConversations; ++c) {
      Session s(model, {.capacity = 1024});
      for (int t = 0; t < kTurns; ++t) {
        reply(s, turn_ids(c, t));
        turns_.push_back(s.fork());
        places_.push_back(digests_of(turns_.back()).id);
      }
    }
  }
  Session& turn(int c, int t) { return turns_[static_cast<size_t>(c * kTurns + t)]; }
  const Sha256& place(int c, int t) const { return places_[static_cast<size_t>(c * kTurns + t)]; }

  std::shared_ptr<const Model> model;

 private:
  std::vector<Session> turns_;
  std::vector<Sha256> places_;
};

// One of the processes. Its log has a line for each operation that the store acknowledged, and for
// each error that must not occur.
class Actor {
 public:
  Actor(std::unique_ptr<Store> store, unsigned seed, const std::string& log)
      : store_(std::move(store)), seed_(seed), random_(seed), log_(log) {}

  void act() {
    try {
      switch (pick(8)) {
        case 0:
          clock_jump = static_cast<int64_t>(random_()) % kFarthestJump * (pick(2) == 0 ? 1 : -1);
          return;
        case 1:
        case 2:
          return name();
        case 3:
          return own_name();
        case 4:
          store_->gc({});
          return;
        default:
          converse();
      }
    } catch (const Error& e) {
      // The store did not acknowledge this. Another process may have changed the name first.
      if (e.kind != ErrorKind::io && e.kind != ErrorKind::mismatch)
        log_ << "wrong " << e.what() << std::endl;
    }
  }

 private:
  int pick(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

  // Continues a known state with tokens that no other process uses, compares the reply, and stores
  // the result.
  void converse() {
    const int c = pick(kConversations), t = pick(kTurns);
    const std::vector<int32_t> said = {3 + static_cast<int32_t>(seed_), 3 + next_ % 500,
                                       3 + next_ / 500};
    ++next_;
    Session alone = alone_.turn(c, t).fork();
    reply(alone, said);
    Session found = known(c, t);
    reply(found, said);
    if (digests_of(found).state != digests_of(alone).state) log_ << "wrong reply" << std::endl;
    StorePutOptions how;
    how.parent = alone_.place(c, t);
    const StorePutReport put = put_session(*store_, found, how);
    log_ << "state " << sha256_text(put.place) << std::endl;
    last_ = put.place;
  }

  // Loads a state from the store; stores it if it is missing.
  Session known(int c, int t) {
    std::optional<StoreSnapshot> from;
    try {
      from = open_snapshot(*store_, alone_.place(c, t));
    } catch (const Error& e) {
      if (e.kind != ErrorKind::io) log_ << "wrong " << e.what() << std::endl;
    }
    if (!from) {
      Session session = alone_.turn(c, t).fork();
      const StorePutReport put = put_session(*store_, session, {});
      log_ << "state " << sha256_text(put.place) << std::endl;
      return session;
    }
    RestoreOptions how;
    how.session.capacity = 1024;
    try {
      return restore_session(*store_, *from->snapshot, alone_.model, how, nullptr);
    } catch (const Error& e) {
      log_ << "wrong " << e.what() << std::endl;
      throw;
    }
  }

  // Sets one of the names that all processes set.
  void name() {
    if (last_ == Sha256()) return;
    const std::string name = "n" + std::to_string(pick(kNames));
    const std::vector<NameEntry> before = store_->history(name);
    store_->set_name(name, before.empty() ? std::nullopt : std::optional(before.back().state),
                     last_);
    log_ << "name " << name << " " << sha256_text(last_) << std::endl;
  }

  // Creates and deletes a name that only this process uses, so that its value is known.
  void own_name() {
    if (last_ == Sha256()) return;
    const std::string name = "own" + std::to_string(seed_);
    const std::vector<NameEntry> found = store_->history(name);
    if (own_ && (found.empty() || found.back().state != *own_)) log_ << "wrong name" << std::endl;
    own_ = std::nullopt;  // unknown until it is acknowledged
    if (found.empty())
      store_->set_name(name, std::nullopt, last_);
    else
      store_->set_name(name, found.back().state, std::nullopt);
    if (found.empty()) own_ = last_;
  }

  std::unique_ptr<Store> store_;
  Alone alone_;
  const unsigned seed_;
  std::mt19937 random_;
  std::ofstream log_;
  int next_ = 0;
  Sha256 last_;
  std::optional<Sha256> own_;
};

// Runs the work of one process. A separate program is needed, because a model's threads do not
// survive fork().
TEST(StoreChaos, IsMadeByProcessesOfThis) {
  const char* given = std::getenv("STET_CHAOS_ACTOR");
  if (given == nullptr) GTEST_SKIP() << "one of them is run by the others";
  std::istringstream words(given);
  std::string url, directory;
  unsigned seed = 0;
  int operations = 0;
  words >> url >> seed >> operations >> directory;
  const std::string log = directory + "/" + std::to_string(seed);
  Actor actor(open_chaos(url), seed, log);
  std::ofstream(log + ".ready");
  for (int i = 0; i < operations || !std::filesystem::exists(directory + "/enough"); ++i)
    actor.act();
}

// ---------------------------------------------------------------- faults

class Chaos {
 public:
  explicit Chaos(std::string url) : url_(std::move(url)) {
    const char* given = std::getenv("STET_CHAOS");
    operations_ = given == nullptr ? "12" : given;
  }
  Chaos(const Chaos&) = delete;
  ~Chaos() {
    for (const pid_t p : processes_) ::kill(p, SIGKILL);
    reap(0);
  }

  void begin() {
    for (int p = 0; p < kProcesses; ++p) {
      const std::string actor =
          url_ + " " + std::to_string(p) + " " + operations_ + " " + scratch_.path();
      processes_.push_back(::fork());
      if (processes_.back() != 0) continue;
      ::setenv("STET_CHAOS_ACTOR", actor.c_str(), 1);
      ::execl("/proc/self/exe", "store_chaos_tests", "--gtest_filter=*IsMadeBy*", "--gtest_brief=1",
              nullptr);
      ::_exit(127);
    }
    EXPECT_TRUE(eventually([&] {
      int ready = 0;
      for (int p = 0; p < kProcesses; ++p)
        ready += std::filesystem::exists(scratch_ / std::to_string(p) + ".ready");
      return ready == kProcesses;
    }));
  }
  // All faults have occurred once. They may repeat until the processes have done their operations.
  void enough() { write_file(scratch_ / "enough", "x"); }
  bool running() {
    reap(WNOHANG);
    return !processes_.empty();
  }
  // Waits until the processes have logged more, after which the faults may repeat. Returns false if
  // no process runs any more.
  bool goes_on() {
    const uintmax_t before = logged();
    eventually([&] { return !running() || logged() > before + 10000; });
    return running();
  }

  void check() {
    // No faults occur any more, but other tests may slow the servers down, so timeouts are long.
    const auto store = open_chaos(url_, {10, 120});
    Alone alone;
    std::set<std::string> states;
    std::map<std::string, std::set<std::string>> names;
    for (int p = 0; p < kProcesses; ++p) {
      std::ifstream log(scratch_ / std::to_string(p));
      for (std::string line; std::getline(log, line);) {
        ASSERT_FALSE(line.starts_with("wrong")) << line;
        std::istringstream words(line);
        std::string what, a, b;
        words >> what >> a >> b;
        if (what == "state")
          states.insert(a);
        else
          names[a].insert(b);
      }
    }
    EXPECT_GT(states.size(), static_cast<size_t>(kProcesses));
    for (const std::string& text : states) check_state(*store, alone, *parse_sha256(text));
    for (const auto& [name, set] : names) {
      std::set<std::string> found;
      for (const NameEntry& e : store->history(name)) found.insert(sha256_text(e.state));
      for (const std::string& s : set) EXPECT_TRUE(found.contains(s)) << name << " " << s;
    }
    std::printf("%zu states acknowledged, %zu names\n", states.size(), names.size());
  }

 private:
  uintmax_t logged() const {
    uintmax_t bytes = 0;
    for (int p = 0; p < kProcesses; ++p)
      bytes += std::filesystem::file_size(scratch_ / std::to_string(p));
    return bytes;
  }

  void reap(int how) {
    std::erase_if(processes_, [&](pid_t p) {
      int status = 0;
      if (::waitpid(p, &status, how) != p) return false;
      EXPECT_TRUE(how == 0 || status == 0);
      return true;
    });
  }

  void check_state(Store& store, const Alone& alone, const Sha256& place) {
    const auto record = store.find_state(place);
    ASSERT_TRUE(record.has_value()) << sha256_text(place);
    const StoreSnapshot from = open_snapshot(store, place);
    EXPECT_EQ(from.snapshot->digests().id, place);
    RestoreOptions how;
    how.session.capacity = 1024;
    Session session = restore_session(store, *from.snapshot, alone.model, how, nullptr);
    EXPECT_EQ(digests_of(session).id, place);
  }

  const std::string url_;
  std::string operations_;
  TemporaryDirectory scratch_;
  std::vector<pid_t> processes_;
};

void hang(RedisServer& server) {
  server.send(SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  server.send(SIGCONT);
}

void cut_connections(const RedisServer& server) {
  server.ask({"CLIENT", "KILL", "TYPE", "normal"});
}

void run_out_of_memory(const RedisServer& server) {
  const std::string info = server.ask({"INFO", "memory"});
  const size_t at = info.find("used_memory:");
  if (at == std::string::npos) return;  // the server does not answer
  const long used = std::atol(info.c_str() + at + 12);
  server.ask({"CONFIG", "SET", "maxmemory-policy", "volatile-lru"});
  server.ask({"CONFIG", "SET", "maxmemory", std::to_string(used * 9 / 10)});
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  server.ask({"CONFIG", "SET", "maxmemory", "0"});
}

TEST(StoreChaos, AMachineWithAWrongClockDeletesNothing) {
  const TemporaryDirectory scratch;
  create_store(scratch / "store", 0);
  const auto store = open_chaos(scratch / "store");
  const Sha256 id = sha256_of(as_bytes("unnamed"));
  for (const int64_t jump : {-kFarthestJump, kFarthestJump}) {
    clock_jump = jump;
    store->put_state(id, {});
    clock_jump = -jump;
    EXPECT_EQ(store->gc({}).states, 0u);
    clock_jump = 0;
  }
  const Store::Lease lease = store->lease({&id, 1}, 60);
  GcOptions now;
  now.grace = -10;
  clock_jump = kFarthestJump;
  EXPECT_EQ(store->gc(now).states, 0u);
  clock_jump = 0;
}

TEST(StoreChaos, OnAServer) {
  if (!have_redis_server()) GTEST_SKIP() << "no redis-server and redis-cli here";
  RedisServer server({"--appendonly", "yes", "--appendfsync", "always"});
  create_store(server.url(), 0);
  Chaos chaos(server.url());
  chaos.begin();
  do {
    cut_connections(server);
    run_out_of_memory(server);
    hang(server);
    server.kill();
    server.start();
    cut_connections(server);
    chaos.enough();
  } while (chaos.goes_on());
  chaos.check();
}

// Moves some slots with keys from one primary to another, as an operator would. Repairs them if a
// server did not answer in time. Returns true if they have moved.
bool move_slots(const RedisCluster& cluster, std::mt19937& random) {
  std::vector<const RedisServer*> primaries;
  for (const auto& s : cluster.servers) {
    if (s->ask({"ROLE"}).starts_with("master")) primaries.push_back(s.get());
  }
  if (primaries.size() != 3) return false;
  std::ranges::shuffle(primaries, random);
  const std::string line =
      "redis-cli --cluster reshard 127.0.0.1:" + std::to_string(primaries[0]->port()) +
      " --cluster-from " + primaries[0]->ask({"CLUSTER", "MYID"}) + " --cluster-to " +
      primaries[1]->ask({"CLUSTER", "MYID"}) + " --cluster-slots 300 --cluster-yes >/dev/null 2>&1";
  if (std::system(line.c_str()) == 0) return true;
  const std::string mend =
      "redis-cli --cluster fix 127.0.0.1:" + std::to_string(primaries[0]->port()) +
      " >/dev/null 2>&1";
  (void)!std::system(mend.c_str());
  return false;
}

// Kills a primary; its replica takes over. Then restarts it as the replica.
void fail_over(RedisCluster& cluster, RedisServer& server) {
  server.kill();
  EXPECT_TRUE(eventually([&] { return cluster.serves(); }));
  server.start();
  EXPECT_TRUE(eventually([&] { return cluster.ready(); }));
}

TEST(StoreChaos, InACluster) {
  if (!have_redis_server()) GTEST_SKIP() << "no redis-server and redis-cli here";
  RedisCluster cluster({"--min-replicas-to-write", "1", "--cluster-node-timeout", "2500"});
  ASSERT_TRUE(cluster.created);
  create_store(cluster.servers[0]->url(), 0);
  Chaos chaos(cluster.servers[0]->url());
  chaos.begin();
  std::mt19937 random(1);
  int moved = 0;
  const auto any = [&]() -> RedisServer& { return *cluster.servers[random() % 6]; };
  do {
    moved += move_slots(cluster, random);
    cut_connections(any());
    fail_over(cluster, cluster.primary_of("key" + std::to_string(random())));
    run_out_of_memory(cluster.primary_of("key" + std::to_string(random())));
    hang(any());
    any().ask({"CLIENT", "KILL", "TYPE", "replica"});
    chaos.enough();
  } while (chaos.goes_on());
  EXPECT_TRUE(eventually([&] { return cluster.ready(); }));
  EXPECT_GT(moved, 0);
  chaos.check();
}

}  // namespace
}  // namespace stet::test::chaos_tests
#endif
