// Random schedules of put, read, name, delete, lease, gc and crash, compared with a model of the
// store's content. Nothing reachable from a name or a lease is lost, nothing is deleted before its
// grace time, and unreachable records are deleted after it. A crash comes between any two calls on
// files or within one (dying_files.hpp). A second process acts between any two backend calls of the
// first. STET_SCHEDULES sets their number (default 150 in a directory, a tenth of it on a server).
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "stet/base/bytes.hpp"
#include "stet/store/store.hpp"
#include "tests/store/dying_files.hpp"
#ifdef STET_HAVE_HIREDIS
#include "tests/store/redis_servers.hpp"
#else
#include "tests/support/files.hpp"
#endif

namespace stet::test::schedules_tests {
namespace {

constexpr int64_t kGrace = 100;
constexpr int kBlocks = 40, kLongestLease = 450;

Sha256 hash_of_number(const char* what, int n) {
  const std::string text = what + std::to_string(n);
  return sha256_of(as_bytes(text));
}

std::string block_bytes(int n) {
  return std::string(100 + static_cast<size_t>(n), static_cast<char>('a' + n % 26));
}

// Calls `before` before each call of the inner backend.
class Interrupted : public StoreBackend {
 public:
  Interrupted(std::shared_ptr<StoreBackend> inner, std::function<void()> before)
      : inner_(std::move(inner)), before_(std::move(before)) {}
  const std::string& url() const override { return inner_->url(); }
  int64_t now() override { return inner_->now(); }
  std::vector<std::optional<StoredBytes>> read(RecordClass record_class,
                                               std::span<const Sha256> names) override {
    before_();
    return inner_->read(record_class, names);
  }
  std::vector<bool> touch(RecordClass record_class, std::span<const Sha256> names) override {
    before_();
    return inner_->touch(record_class, names);
  }
  size_t write(RecordClass record_class, std::span<const NewRecord> records) override {
    before_();
    return inner_->write(record_class, records);
  }
  void list(RecordClass record_class, const std::function<void(const RecordInfo&)>& each) override {
    before_();
    inner_->list(record_class, each);
  }
  bool remove(RecordClass record_class, const Sha256& name, int64_t unused_since) override {
    before_();
    return inner_->remove(record_class, name, unused_since);
  }
  std::vector<std::string> names() override {
    before_();
    return inner_->names();
  }
  std::optional<std::vector<std::byte>> read_name(const std::string& name) override {
    before_();
    return inner_->read_name(name);
  }
  bool replace_name(const std::string& name, const std::optional<std::vector<std::byte>>& expected,
                    const std::optional<std::vector<std::byte>>& next) override {
    before_();
    return inner_->replace_name(name, expected, next);
  }
  void lease(const std::string& holder, std::span<const Sha256> states, int64_t until) override {
    before_();
    inner_->lease(holder, states, until);
  }
  void release(const std::string& holder) override { inner_->release(holder); }
  std::vector<Sha256> leased() override {
    before_();
    return inner_->leased();
  }
  void tidy(int64_t before) override {
    before_();
    inner_->tidy(before);
  }
  std::vector<std::pair<std::string, std::string>> about() override { return inner_->about(); }

 private:
  std::shared_ptr<StoreBackend> inner_;
  std::function<void()> before_;
};

// Suspends the simulated death of the process while the test reads the store itself.
class Alive {
 public:
  Alive() { death = {}; }
  Alive(const Alive&) = delete;
  ~Alive() { death = before_; }

 private:
  const Death before_ = death;
};

class StoreWorld {
 public:
  // `pass` advances a server's clock by seconds. `slack` is the precision of its times in seconds.
  // `calls` is the largest number of calls after which a process is killed.
  StoreWorld(unsigned seed, std::string url, std::function<void(int)> pass, int64_t slack,
             int calls)
      : random_(seed), url_(std::move(url)), pass_(std::move(pass)), slack_(slack), calls_(calls) {
    create_store(url_, 0);
    store_ = open(true);
    other_ = open(false);
  }

  void step() {
    const bool crash = pick(4) == 0;
    if (crash) die_after(pick(calls_));
    act(*store_, pick(12));
    if (death.dead) {
      for (auto& [n, l] : leases_) l.held = nullptr;  // drops them without releasing them
      store_ = nullptr;
    }
    if (revive()) {
      store_ = open(true);
      learn();
    }
    if (pick(3) == 0) read();
  }

  // After the grace time without activity, only records reachable from names are left.
  void finish() {
    busy_ = true;  // the second process does nothing from here on
    leases_.clear();
    pass(2 * kGrace + kLongestLease);
    learn();
    collect(*store_);
    read();
    const std::set<Sha256> most = reachable(false);
    for (const RecordInfo& e : store_->states())
      EXPECT_TRUE(most.contains(e.name)) << sha256_text(e.name);
    std::set<Sha256> expected;
    for (const Sha256& s : most) {
      for (const int b : states_.at(s).blocks) expected.insert(hash_of_number("block", b));
    }
    other_->backend().list(RecordClass::blocks, [&](const RecordInfo& e) {
      EXPECT_TRUE(expected.contains(e.name)) << sha256_text(e.name);
    });
  }

 private:
  struct ModelState {
    Sha256 parent;
    bool cut = false;  // the parent was missing when this state was last put or kept
    std::vector<int> blocks;
    std::set<int> kept;  // those of `blocks` that existed at that time
  };
  struct ModelLease {
    std::vector<Sha256> states;
    int64_t until;
    bool sure = false;  // true: the lease exists; false: it may exist
    std::shared_ptr<Store::Lease> held = nullptr;
  };
  using History = std::vector<Sha256>;

  int pick(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  template <class Container>
  const auto& any_of(const Container& all) {
    auto at = all.begin();
    std::advance(at, pick(static_cast<int>(all.size())));
    return *at;
  }

  // Opens the same store as another process.
  std::unique_ptr<Store> open(bool interrupted) {
    const StoreClock clock = [this] { return clock_; };
    std::shared_ptr<StoreBackend> backend = open_store_backend(url_, clock, {5, 5});
    if (interrupted)
      backend = std::make_shared<Interrupted>(std::move(backend), [this] { interrupt(); });
    return std::make_unique<Store>(std::move(backend), StoreKey{}, StoreOptions{clock, 1});
  }

  // Lets the second process act during the first one's work. The second process is never killed.
  void interrupt() {
    if (busy_ || death.dead || pick(12) > 0) return;
    busy_ = true;
    const Alive alive;
    act(*other_, pick(11));
    busy_ = false;
  }

  void act(Store& store, int what) {
    ++acts_;
    switch (what) {
      case 0:
      case 1:
      case 2:
        return put(store);
      case 3:
        return put_again(store);
      case 4:
      case 5:
        return name(store);
      case 6:
        return unname(store);
      case 7:
        return lease(store);
      case 8:
      case 9:
        return collect(store);
      case 10:
        return use(store);
      default:
        pass(pick(80));
    }
  }

  void pass(int seconds) {
    clock_ += seconds;
    pass_(seconds);
  }

  // Runs work of a process that another disturbs and that may be killed. Returns false on an error,
  // which is allowed.
  template <class Work>
  bool done(Work work) {
    try {
      work();
    } catch (const Error& e) {
      if (!death.dead) throw;
      return false;
    }
    return !death.dead;
  }

  void used(const Sha256& state) {
    used_[state] = clock_;
    for (const int b : states_.at(state).blocks) used_[hash_of_number("block", b)] = clock_;
  }

  // ---- reachability

  // Returns all states that may be reachable or, with `least`, only those that must be. A parent
  // that was missing when its child was put or kept may be unreachable.
  std::set<Sha256> reachable(bool least) const {
    std::set<Sha256> found;
    const auto follow = [&](Sha256 at) {
      while (at != Sha256() && found.insert(at).second) {
        const ModelState& s = states_.at(at);
        at = least && s.cut ? Sha256() : s.parent;
      }
    };
    for (const auto& [name, history] : names_) {
      for (const Sha256& s : history) follow(s);
    }
    for (const auto& [n, l] : leases_) {
      if (least ? l.sure && l.until > clock_ + slack_ : l.until > clock_ - slack_) {
        for (const Sha256& s : l.states) follow(s);
      }
    }
    return found;
  }

  // Records `at` and its ancestors as kept, with the blocks that exist. Ends at a state of `before`
  // or at a missing parent.
  void keep(Sha256 at, const std::set<Sha256>& before) {
    for (; at != Sha256() && !before.contains(at); at = states_.at(at).parent) {
      ModelState& s = states_.at(at);
      s.kept.clear();
      for (const int b : s.blocks) {
        const Sha256 block = hash_of_number("block", b);
        if (!other_->backend().touch(RecordClass::blocks, {&block, 1})[0]) continue;
        s.kept.insert(b);
        used_[block] = clock_;
      }
      used_[at] = clock_;
      s.cut = s.parent != Sha256() && !other_->has_state(s.parent);
      if (s.cut) return;
    }
  }

  // ---- operations

  bool put_blocks(Store& store, const std::vector<int>& blocks) {
    std::vector<std::string> bytes;
    for (const int b : blocks) bytes.push_back(block_bytes(b));
    std::vector<Store::NewBlock> all;
    for (size_t i = 0; i < blocks.size(); ++i)
      all.push_back(
          {hash_of_number("block", blocks[i]), [&bytes, i] { return as_bytes(bytes[i]); }});
    return done([&] {
      const auto report = store.put_blocks(all);
      EXPECT_TRUE(death.dead || report.written + report.present == blocks.size());
    });
  }

  void put_state(Store& store, const Sha256& id) {
    const ModelState state = states_.at(id);
    StateRecord record;
    record.parent = state.parent;
    for (const int b : state.blocks) record.blocks.push_back(hash_of_number("block", b));
    if (put_blocks(store, state.blocks) && done([&] { store.put_state(id, record); })) used(id);
  }

  // Puts a state that continues an existing one and shares its blocks, or begins a new one.
  void put(Store& store) {
    ModelState state;
    const std::optional<Sha256> parent = one_that_is_there();
    if (parent && pick(4) > 0) {
      state.parent = *parent;
      state.blocks = states_.at(*parent).blocks;
    }
    for (int more = pick(3); more > 0; --more) state.blocks.push_back(pick(kBlocks));
    const Sha256 id = hash_of_number("state", next_++);
    states_[id] = state;
    put_state(store, id);
  }

  // Puts a state again that may have been collected.
  void put_again(Store& store) {
    if (!states_.empty()) put_state(store, any_of(states_).first);
  }

  std::optional<Sha256> one_that_is_there() {
    const Alive alive;
    const auto there = other_->states();
    return there.empty() ? std::nullopt : std::optional(any_of(there).name);
  }

  bool is_there(const Sha256& state) {
    const Alive alive;
    return other_->has_state(state);
  }

  void name(Store& store) {
    const std::optional<Sha256> state = one_that_is_there();
    if (!state) return;
    const std::string name = "n" + std::to_string(pick(4));
    const History before = names_[name];
    const std::optional<Sha256> last = before.empty() ? std::nullopt : std::optional(before.back());
    // A process with an outdated value changes nothing.
    if (pick(4) == 0) {
      const Alive alive;
      EXPECT_THROW(other_->set_name(name, hash_of_number("nobody", 1), *state), Error);
    }
    try {
      store.set_name(name, last, *state);
    } catch (const Error&) {
      // The process was killed, or another one changed the name or deleted the state first.
      EXPECT_TRUE(death.dead || names_[name] != before || !is_there(*state));
    }
    learn_name(name, *state);
  }

  void unname(Store& store) {
    if (names_.empty()) return;
    const std::string name = any_of(names_).first;
    if (names_[name].empty()) return;
    try {
      store.set_name(name, names_[name].back(), std::nullopt);
    } catch (const Error& e) {
      EXPECT_TRUE(death.dead || e.kind == ErrorKind::mismatch) << e.what();
    }
    learn_name(name, std::nullopt);
  }

  // Updates the model of a name after an attempt to change it, which may have failed or been killed.
  // If the attempt was to set the name to state `added`, the name must have its previous value or
  // that state. If it was to delete the name, the name must be deleted or have its previous value.
  void learn_name(const std::string& name, const std::optional<Sha256>& added) {
    const Alive alive;
    History found;
    for (const NameEntry& e : other_->history(name)) found.push_back(e.state);
    History& model = names_[name];
    History with = model;
    if (added) with.push_back(*added);
    if (found != model) {
      EXPECT_EQ(found, added ? with : History());
      const std::set<Sha256> before = reachable(true);
      model = found;
      if (added) keep(*added, before);
    }
  }

  void lease(Store& store) {
    const std::optional<Sha256> state = one_that_is_there();
    if (!state) return;
    const auto first =
        std::ranges::find_if(leases_, [](const auto& l) { return l.second.held != nullptr; });
    if (first != leases_.end() && pick(2) == 0) {
      first->second.sure = false;
      first->second.held = nullptr;
      if (!death.dead) leases_.erase(first);
      return;
    }
    const int at = next_lease_++;
    leases_[at] = {{*state}, clock_ + 50 + pick(kLongestLease - 50)};
    const std::set<Sha256> before = reachable(true);
    try {
      auto held = std::make_shared<Store::Lease>(
          store.lease(leases_[at].states, leases_[at].until - clock_));
      if (!death.dead) {
        const Alive alive;
        leases_[at].sure = true;
        keep(*state, before);
      }
      leases_[at].held = std::move(held);
    } catch (const Error&) {
      // The process was killed, or another one deleted the state.
      EXPECT_TRUE(death.dead || !is_there(*state));
    }
  }

  void use(Store& store) {
    const std::optional<Sha256> state = one_that_is_there();
    if (!state) return;
    done([&] {
      const auto record = store.find_state(*state);
      if (record) store.blocks(record->blocks);
      if (record && !death.dead) used_[*state] = clock_;
    });
  }

  void list_all(const std::function<void(const RecordInfo&)>& each) {
    const Alive alive;
    other_->backend().list(RecordClass::states, each);
    other_->backend().list(RecordClass::blocks, each);
  }

  void collect(Store& store) {
    const int64_t before = clock_ - kGrace;
    std::set<Sha256> idle, there;  // idle: unused for longer than the grace time
    list_all([&](const RecordInfo& e) {
      if (e.used < before - slack_) idle.insert(e.name);
    });
    std::set<Sha256> kept = reachable(false);
    for (const Sha256& s : std::set<Sha256>(kept)) {
      for (const int b : states_.at(s).blocks) kept.insert(hash_of_number("block", b));
    }
    const int64_t did = acts_;
    GcOptions options;
    options.grace = kGrace;
    const bool whole =
        done([&] { EXPECT_EQ(store.gc(options).refused, std::vector<std::string>()); });
    list_all([&](const RecordInfo& e) { there.insert(e.name); });
    for (const auto& [name, when] : used_) {
      EXPECT_TRUE(when < before + slack_ || there.contains(name))
          << "before its time: " << sha256_text(name);
    }
    for (const Sha256& name : idle) {
      EXPECT_FALSE(whole && did == acts_ && !kept.contains(name) && there.contains(name))
          << "after its time: " << sha256_text(name);
    }
  }

  // Expects the history of every name to be that of the model.
  void learn() {
    for (auto& [name, history] : names_) {
      History found;
      for (const NameEntry& e : other_->history(name)) found.push_back(e.state);
      EXPECT_EQ(found, history);
    }
  }

  void read() {
    learn();
    for (const Sha256& id : reachable(true)) {
      const ModelState& model = states_.at(id);
      const auto record = other_->find_state(id);
      ASSERT_TRUE(record.has_value()) << sha256_text(id);
      ASSERT_EQ(record->blocks.size(), model.blocks.size());
      EXPECT_EQ(record->parent, model.parent);
      const auto blocks = other_->blocks(record->blocks);
      for (size_t i = 0; i < blocks.size(); ++i) {
        const std::string bytes = block_bytes(model.blocks[i]);
        if (blocks[i].bytes.empty() && !model.kept.contains(model.blocks[i])) continue;
        ASSERT_TRUE(std::ranges::equal(blocks[i].bytes, as_bytes(bytes)))
            << "block " << model.blocks[i] << " " << blocks[i].refused;
      }
      used_[id] = clock_;
    }
  }

  std::mt19937 random_;
  const std::string url_;
  const std::function<void(int)> pass_;
  const int64_t slack_;
  const int calls_;
  // The clock starts at the real time. A process that dies before it sets a file's time leaves the
  // time that the file system gave.
  int64_t clock_ = std::time(nullptr), acts_ = 0;
  bool busy_ = false;
  std::unique_ptr<Store> store_, other_;
  int next_ = 0;
  std::map<Sha256, ModelState> states_;
  std::map<Sha256, int64_t> used_;  // last time when a state or block was surely used
  std::map<std::string, History> names_;
  std::map<int, ModelLease> leases_;
  int next_lease_ = 0;
};

unsigned schedules() {
  const char* given = std::getenv("STET_SCHEDULES");
  return given == nullptr ? 150 : static_cast<unsigned>(std::atoi(given));
}

TEST(StoreSchedules, NothingReachableIsLostAndNothingElseStays) {
  for (unsigned seed = 0; seed < schedules() && !HasFailure(); ++seed) {
    SCOPED_TRACE("schedule " + std::to_string(seed));
    const TemporaryDirectory scratch;
    StoreWorld world(
        seed, scratch / "store", [](int) {}, 0, 50);
    for (int i = 0; i < 30 && !HasFailure(); ++i) world.step();
    world.finish();
  }
}

#ifdef STET_HAVE_HIREDIS
// The server's own clock counts down the lifetimes of blocks and leases.
TEST(StoreSchedules, NothingReachableIsLostOnAServer) {
  if (!have_redis_server()) GTEST_SKIP() << "no redis-server and redis-cli here";
  const RedisServer server({"--appendonly", "no"});
  const auto pass = [&](int seconds) {
    server.ask({"EVAL",
                R"(for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('TTL', key)
  if left >= 0 then redis.call('EXPIRE', key, left - ARGV[1]) end
end)",
                "0", std::to_string(seconds)});
  };
  for (unsigned seed = 0; seed < (schedules() + 9) / 10 && !HasFailure(); ++seed) {
    SCOPED_TRACE("schedule " + std::to_string(seed));
    server.ask({"FLUSHALL"});
    StoreWorld world(seed, server.url(), pass, 5, 12);
    for (int i = 0; i < 30 && !HasFailure(); ++i) world.step();
    world.finish();
  }
}
#endif

}  // namespace
}  // namespace stet::test::schedules_tests
