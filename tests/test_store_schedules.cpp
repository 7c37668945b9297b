// Random schedules of put, read, name, delete, gc and crash against a model of what must be there:
// nothing that a name leads to is lost, and what nothing leads to goes within the grace time.
// STET_SCHEDULES: how many (default 60).
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "scratch.hpp"
#include "stet/base/bytes.hpp"
#include "stet/store/store.hpp"

namespace stet::test {
namespace {

constexpr int64_t kGrace = 100;

Sha256 hash_of_number(const char* what, int n) {
  const std::string text = what + std::to_string(n);
  return sha256_of(stet_test::as_bytes(text));
}

struct Crash {};

class StoreWorld {
 public:
  explicit StoreWorld(unsigned seed, const std::string& path) : random_(seed), path_(path) {
    create_store(path_, 0);
    store_ = open();
  }

  void step() {
    switch (pick(10)) {
      case 0:
      case 1:
      case 2:
        return put();
      case 3:
        return put_and_crash();
      case 4:
      case 5:
        return name();
      case 6:
        return unname();
      case 7:
        clock_ += pick(80);
        return;
      case 8:
        return collect();
      default:
        return read();
    }
  }

  // After the grace time without anything happening, what is left is what names lead to.
  void finish() {
    clock_ += 2 * kGrace;
    GcOptions options;
    options.grace = kGrace;
    store_->gc(options);
    read();
    const std::set<Sha256> kept = reachable();
    std::set<Sha256> there;
    for (const ShelfEntry& e : store_->states()) there.insert(e.name);
    EXPECT_EQ(there, kept);
    std::set<Sha256> blocks, expected;
    store_->backend().list(Shelf::blocks, [&](const ShelfEntry& e) { blocks.insert(e.name); });
    for (const Sha256& s : kept) {
      for (const int b : states_[s].blocks) expected.insert(hash_of_number("block", b));
    }
    EXPECT_EQ(blocks, expected);
  }

 private:
  struct ModelState {
    Sha256 parent;
    std::vector<int> blocks;
  };

  int pick(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  // Another process on the same directory.
  std::unique_ptr<Store> open() {
    const StoreClock clock = [this] { return clock_; };
    return std::make_unique<Store>(open_store_backend(path_, clock), StoreKey{},
                                   StoreOptions{clock, 1});
  }

  std::set<Sha256> reachable() const {
    std::set<Sha256> found;
    for (const auto& [name, history] : names_) {
      for (Sha256 at : history) {
        while (at != Sha256() && found.insert(at).second) at = states_.at(at).parent;
      }
    }
    return found;
  }

  static std::string block_bytes(int n) {
    return std::string(100 + static_cast<size_t>(n), static_cast<char>('a' + n % 26));
  }

  size_t put_blocks(const std::vector<int>& blocks) {
    std::vector<std::string> bytes;
    for (const int b : blocks) bytes.push_back(block_bytes(b));
    std::vector<Store::NewBlock> all;
    for (size_t i = 0; i < blocks.size(); ++i)
      all.push_back({hash_of_number("block", blocks[i]),
                     [&bytes, i] { return stet_test::as_bytes(bytes[i]); }});
    const auto report = store_->put_blocks(all);
    return report.written + report.present;
  }

  // A state goes on from one that is there, and shares its blocks; or begins anew.
  void put() {
    ModelState state;
    const auto there = store_->states();
    if (!there.empty() && pick(4) > 0) {
      state.parent = there[static_cast<size_t>(pick(static_cast<int>(there.size())))].name;
      state.blocks = states_.at(state.parent).blocks;
    }
    for (int more = pick(3); more > 0; --more) state.blocks.push_back(pick(40));
    ASSERT_EQ(put_blocks(state.blocks), state.blocks.size());
    const Sha256 id = hash_of_number("state", next_++);
    StateRecord record;
    record.parent = state.parent;
    record.created = clock_;
    for (const int b : state.blocks) record.blocks.push_back(hash_of_number("block", b));
    states_[id] = state;
    // The parent may have gone before, with its own; then the chain ends there.
    store_->put_state(id, record);
    recent_ = id;
  }

  void put_and_crash() {
    put_blocks({40 + pick(40), 40 + pick(40)});
    stet_test::write_file(path_ + "/states/.half-" + std::to_string(pick(5)), "half");
    store_ = open();
  }

  void name() {
    const auto there = store_->states();
    if (there.empty()) return;
    set("n" + std::to_string(pick(4)),
        pick(2) == 0 && store_->has_state(recent_)
            ? recent_
            : there[static_cast<size_t>(pick(static_cast<int>(there.size())))].name);
  }

  void set(const std::string& name, const Sha256& state) {
    auto& history = names_[name];
    const auto before = history.empty() ? std::nullopt : std::optional(history.back());
    // Somebody who is wrong about what is there changes nothing.
    EXPECT_THROW(store_->set_name(name, hash_of_number("nobody", 1), state), Error);
    store_->set_name(name, before, state);
    if (before != state) history.push_back(state);
    cut_lost_ancestors(state);
  }

  // Ancestors that went before the name was set are no part of what it leads to.
  void cut_lost_ancestors(Sha256 at) {
    while (at != Sha256()) {
      const Sha256 parent = states_.at(at).parent;
      if (parent != Sha256() && !store_->has_state(parent)) states_[at].parent = Sha256();
      at = states_.at(at).parent;
    }
  }

  void unname() {
    if (names_.empty()) return;
    auto it = names_.begin();
    std::advance(it, pick(static_cast<int>(names_.size())));
    if (!it->second.empty()) store_->set_name(it->first, it->second.back(), std::nullopt);
    names_.erase(it);
  }

  void collect() {
    GcOptions options;
    options.grace = kGrace;
    // While it runs, somebody else puts and names, or it is killed between its two halves.
    const bool crash = pick(6) == 0;
    options.between = [&] {
      for (int n = pick(3); n > 0; --n) pick(2) == 0 ? put() : name();
      if (crash) throw Crash();
    };
    try {
      EXPECT_EQ(store_->gc(options).refused, std::vector<std::string>());
    } catch (const Crash&) {
      store_ = open();
    }
    read();
  }

  void read() {
    for (const auto& [name, history] : names_) {
      std::vector<Sha256> found;
      for (const NameEntry& e : store_->history(name)) found.push_back(e.state);
      EXPECT_EQ(found, history);
    }
    for (const Sha256& id : reachable()) {
      const ModelState& model = states_.at(id);
      const auto record = store_->find_state(id);
      ASSERT_TRUE(record.has_value());
      ASSERT_EQ(record->blocks.size(), model.blocks.size());
      const auto blocks = store_->blocks(record->blocks);
      for (size_t i = 0; i < blocks.size(); ++i) {
        const std::string bytes = block_bytes(model.blocks[i]);
        ASSERT_TRUE(std::ranges::equal(blocks[i].bytes, stet_test::as_bytes(bytes)))
            << blocks[i].refused;
      }
    }
  }

  std::mt19937 random_;
  std::string path_;
  int64_t clock_ = 1000000;
  std::unique_ptr<Store> store_;
  int next_ = 0;
  Sha256 recent_;
  std::map<Sha256, ModelState> states_;
  std::map<std::string, std::vector<Sha256>> names_;
};

TEST(StoreSchedules, NothingReachableIsLostAndNothingElseStays) {
  const char* given = std::getenv("STET_SCHEDULES");
  const unsigned count = given == nullptr ? 60 : static_cast<unsigned>(std::atoi(given));
  for (unsigned seed = 0; seed < count && !HasFatalFailure(); ++seed) {
    SCOPED_TRACE("schedule " + std::to_string(seed));
    const stet_test::ScratchDir scratch;
    StoreWorld world(seed, scratch / "store");
    for (int i = 0; i < 25; ++i) world.step();
    world.finish();
    if (HasNonfatalFailure()) return;
  }
}

}  // namespace
}  // namespace stet::test
