// Simulates a thousand machines and a million conversations on one store, with the policy of the
// code (stet/store/policy.hpp) and measured costs (README.md). Shows how often a state is in a
// machine's memory or in the store. Also shows the load on network and store, and the first
// resource to run out. Deterministic: all draws use Philox. Prints the tables of README.md.
//   simulate_store [TURNS]
//
// Each turn draws a conversation by Zipf's law, and a machine at random (a plain balancer) or by
// the conversation (a sticky one). That machine's memory and then the store, both LRU caches,
// supply blocks of the state. The policy decides which are fetched and which computed; then come
// the new tokens. All conversations share a beginning that every machine has. A full conversation
// starts over.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <string>
#include <unordered_map>
#include <vector>

#include "stet/sampling/philox.hpp"
#include "stet/store/policy.hpp"

namespace {

using namespace stet;

constexpr uint32_t kMachines = 1000, kConversations = 1000000, kNone = ~0u;
constexpr int kShared = 512, kSaid = 60, kReplied = 200, kTurnTokens = kSaid + kReplied;
constexpr int kMostTokens = 8192;
constexpr uint64_t kSeed = 26;
// Bytes/s of a machine's network and of a store server's (10 Gbit/s each), and answers/s of one
// server.
constexpr double kLink = 1.25e9, kAnswers = 20000;
constexpr int kServers = 16, kCalls = 4;  // calls of a turn, for its state and its names

struct Shape {
  const char* name;
  int layers, kv_heads, head_dim, bytes;  // bytes of a key or value: 2 for bfloat16
  double billions;                        // of weights
  double block_bytes() const {
    return 2.0 * layers * kv_heads * head_dim * bytes * static_cast<double>(kPolicyBlock);
  }
};
// The published shapes of Llama 3.2 and 3.1.
constexpr std::array<Shape, 4> kShapes = {{{"1B", 16, 8, 64, 2, 1.24},
                                           {"3B", 28, 8, 128, 2, 3.21},
                                           {"8B", 32, 8, 128, 2, 8.03},
                                           {"70B", 80, 8, 128, 2, 70.6}}};

// Costs measured with the 1B shape in q8 on two threads (bench/server/README.md, README.md). They
// cover prompt tokens, 16 replies at once, attention, and records received from a Redis server and
// checked. Other shapes scale with their weights, attention with their keys and values.
struct Machine {
  double token_seconds = 1.5e-3, draw_seconds = 5.6e-3, growth = 5600;
  double latency = 2e-4, byte_seconds = 3e-9;
  explicit Machine(const Shape& s, double speed = 1) {
    const double larger = s.billions / kShapes[0].billions;
    growth *= larger / (s.block_bytes() / kShapes[0].block_bytes());
    token_seconds *= larger / speed;
    draw_seconds *= larger / speed;
  }
};

// ---------------------------------------------------------------- draws

class Draws {
 public:
  explicit Draws(double skew) : cumulative_(kConversations) {
    double sum = 0;
    for (uint32_t i = 0; i < kConversations; ++i) cumulative_[i] = sum += std::pow(i + 1.0, -skew);
    // The table index at which a drawn number's bucket starts, so that a few steps find it.
    for (size_t bucket = 0, i = 0; bucket <= kBuckets; ++bucket) {
      const double from = sum * static_cast<double>(bucket) / kBuckets;
      while (i + 1 < kConversations && cumulative_[i] < from) ++i;
      first_[bucket] = static_cast<uint32_t>(i);
    }
  }
  double uniform() { return philox_uniform(kSeed, next_++); }
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(uniform() * n); }
  uint32_t conversation() {
    const double u = uniform();
    const auto bucket = static_cast<size_t>(u * kBuckets);
    const auto begin = cumulative_.begin();
    const auto at = std::lower_bound(begin + first_[bucket], begin + first_[bucket + 1] + 1,
                                     u * cumulative_.back());
    return std::min(static_cast<uint32_t>(at - begin), kConversations - 1);
  }

 private:
  static constexpr size_t kBuckets = 65536;
  std::vector<double> cumulative_;
  std::array<uint32_t, kBuckets + 1> first_{};
  uint64_t next_ = 0;
};

// ---------------------------------------------------------------- caches

// An LRU cache of a limited number of conversations' blocks.
class Lru {
 public:
  explicit Lru(double blocks) : most_(blocks) {}

  int blocks_of(uint32_t conversation) const {
    const auto at = index_.find(conversation);
    return at == index_.end() ? 0 : entries_[at->second].blocks;
  }
  void use(uint32_t conversation, int blocks) {
    uint32_t at;
    if (const auto found = index_.find(conversation); found != index_.end()) {
      at = found->second;
      unlink(at);
      used_ -= entries_[at].blocks;
    } else {
      at = fresh();
      index_[conversation] = at;
    }
    entries_[at] = {conversation, blocks, kNone, newest_};
    if (newest_ != kNone) entries_[newest_].newer = at;
    newest_ = at;
    if (oldest_ == kNone) oldest_ = at;
    used_ += blocks;
    while (used_ > most_ && oldest_ != newest_) drop(oldest_);
  }

 private:
  struct Entry {
    uint32_t conversation;
    int blocks;
    uint32_t newer, older;
  };
  uint32_t fresh() {
    if (free_.empty()) {
      entries_.push_back({});
      return static_cast<uint32_t>(entries_.size() - 1);
    }
    const uint32_t at = free_.back();
    free_.pop_back();
    return at;
  }
  void unlink(uint32_t at) {
    const Entry& e = entries_[at];
    (e.newer == kNone ? newest_ : entries_[e.newer].older) = e.older;
    (e.older == kNone ? oldest_ : entries_[e.older].newer) = e.newer;
  }
  void drop(uint32_t at) {
    unlink(at);
    used_ -= entries_[at].blocks;
    index_.erase(entries_[at].conversation);
    free_.push_back(at);
  }

  double most_, used_ = 0;
  uint32_t newest_ = kNone, oldest_ = kNone;
  std::vector<Entry> entries_;
  std::vector<uint32_t> free_;
  std::unordered_map<uint32_t, uint32_t> index_;
};

// ---------------------------------------------------------------- turns

// Counts turns by the number of blocks found in memory, found in the store, and needed.
struct Turn {
  int here, stored, all;
  uint64_t times;
};
struct Seen {
  std::vector<Turn> turns;
  double count = 0, new_blocks = 0;
  double memory_share = 0, store_share = 0;  // shares of the needed blocks
};

struct Setting {
  double skew, memory_bytes, store_bytes;
  bool sticky;
};

Seen simulate(const Setting& how, double block_bytes, uint32_t turns) {
  Draws draws(how.skew);
  std::vector<Lru> memory(kMachines, Lru(how.memory_bytes / block_bytes));
  Lru store(how.store_bytes / block_bytes);
  std::vector<int> tokens(kConversations);
  constexpr int kSteps = (kMostTokens - kShared) / kTurnTokens;
  for (int& t : tokens) t = kShared + static_cast<int>(draws.below(kSteps)) * kTurnTokens;
  // Fills the store as earlier turns would have, the most popular conversations last.
  for (uint32_t c = kConversations; c-- > 0;)
    store.use(c, tokens[c] / static_cast<int>(kPolicyBlock));
  std::unordered_map<uint64_t, uint64_t> seen;
  Seen result;
  double needed = 0, here_sum = 0, store_sum = 0;
  const uint32_t warm = turns / 4 * 3;
  for (uint32_t n = 0; n < turns; ++n) {
    const uint32_t c = draws.conversation();
    Lru& machine = memory[how.sticky ? c * 2654435761u % kMachines : draws.below(kMachines)];
    if (tokens[c] + kTurnTokens > kMostTokens) tokens[c] = kShared;
    const int all = tokens[c] / static_cast<int>(kPolicyBlock),
              shared = kShared / static_cast<int>(kPolicyBlock);
    const int here = std::max(shared, std::min(all, machine.blocks_of(c))),
              stored = std::max(here, std::min(all, store.blocks_of(c)));
    tokens[c] += kTurnTokens;
    const int after = tokens[c] / static_cast<int>(kPolicyBlock);
    machine.use(c, after);
    store.use(c, after);
    if (n < warm) continue;
    ++seen[static_cast<uint64_t>(here) << 40 | static_cast<uint64_t>(stored) << 20 |
           static_cast<uint64_t>(all)];
    needed += all - shared;
    here_sum += here - shared;
    store_sum += stored - here;
    result.new_blocks += after - all;
    ++result.count;
  }
  for (const auto& [key, times] : seen)
    result.turns.push_back({static_cast<int>(key >> 40), static_cast<int>(key >> 20 & 0xfffff),
                            static_cast<int>(key & 0xfffff), times});
  std::ranges::sort(result.turns, [](const Turn& a, const Turn& b) {
    return std::array{a.here, a.stored, a.all} < std::array{b.here, b.stored, b.all};
  });
  result.memory_share = here_sum / needed;
  result.store_share = store_sum / needed;
  return result;
}

// ---------------------------------------------------------------- cost

struct Load {                                                         // means over turns
  double policy_seconds = 0, fetch_seconds = 0, without_seconds = 0;  // times to the first token
  double compute_seconds = 0;                                         // total of the machine
  double fetched_blocks = 0;
};

// Returns the load under the policy. For comparison, it also has the times if everything in the
// store were fetched, and if nothing were.
Load load_of(const Seen& seen, const Machine& m, double block_bytes) {
  FetchCosts costs;
  costs.token_seconds = m.token_seconds;
  costs.growth = m.growth;
  costs.latency_seconds = m.latency;
  costs.byte_seconds = m.byte_seconds;
  const FetchPolicy policy(costs);
  const auto bytes = static_cast<uint64_t>(block_bytes);
  Load load;
  for (const Turn& t : seen.turns) {
    const double w = static_cast<double>(t.times) / seen.count;
    const int64_t in_store = t.stored - t.here, lost = t.all - t.stored;
    const FetchPlan plan = policy.plan(t.here, in_store, bytes);
    const double said = m.token_seconds * kSaid * (1 + t.all * 64.0 / m.growth),
                 rest = policy.compute_seconds(t.stored, lost) + said;
    load.policy_seconds += w * (plan.seconds + rest);
    load.fetch_seconds +=
        w * (policy.fetch_seconds(static_cast<uint64_t>(in_store) * bytes) + rest);
    load.without_seconds += w * (policy.compute_seconds(t.here, t.all - t.here) + said);
    load.compute_seconds +=
        w * (policy.compute_seconds(t.here, plan.computed) + rest + m.draw_seconds * kReplied);
    load.fetched_blocks += w * static_cast<double>(in_store - plan.computed);
  }
  return load;
}

struct Limit {
  const char* what;
  double turns;  // turns a second that it supports
};

// Returns the resource that supports the fewest turns.
Limit first_limit(const Load& l, const Seen& seen, double block_bytes) {
  const double in = l.fetched_blocks * block_bytes,
               out = seen.new_blocks / seen.count * block_bytes;
  const std::array<Limit, 4> all = {
      {{"computing", kMachines / l.compute_seconds},
       {"machines' network", kMachines * kLink / std::max(in, out)},
       {"store's network", kServers * kLink / std::max(in, out)},
       {"store's answers", kServers * kAnswers / (kCalls + l.fetched_blocks)}}};
  return *std::ranges::min_element(all, {}, &Limit::turns);
}

struct Row {
  const Shape* shape;
  Setting how;
  Seen seen{};
};

std::string where(const Row& row) {
  return fmt::format("{} | {:.1f} MB | {} | {} | {:.0f} GB | {:.0f} TB", row.shape->name,
                     row.shape->block_bytes() / 1e6, row.how.skew,
                     row.how.sticky ? "sticky" : "plain", row.how.memory_bytes / 1e9,
                     row.how.store_bytes / 1e12);
}

void print_hits(const std::vector<Row>& rows) {
  fmt::print(
      "| model | block | skew | balancer | memory | store | in memory | in the store | computed "
      "| first token | without a store | fetched a turn | put a turn | breaks first | at turns/s "
      "| the store then carries |\n{}|\n",
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---");
  for (const Row& row : rows) {
    const double block = row.shape->block_bytes();
    const Seen& seen = row.seen;
    const Load load = load_of(seen, Machine(*row.shape), block);
    const Limit limit = first_limit(load, seen, block);
    const double fetched = load.fetched_blocks * block, put = seen.new_blocks / seen.count * block;
    fmt::print(
        "| {} | {:.1f} % | {:.1f} % | {:.1f} % | {:.2f} s | {:.2f} s | {:.0f} MB | {:.0f} MB | "
        "{} | {:.0f} | {:.2f} GB/s |\n",
        where(row), 100 * seen.memory_share, 100 * seen.store_share,
        100 * (1 - seen.memory_share - seen.store_share), load.policy_seconds, load.without_seconds,
        fetched / 1e6, put / 1e6, limit.what, limit.turns, limit.turns * (fetched + put) / 1e9);
  }
}

// Prints the effect of machines that compute faster than the measured one on the same store.
void print_speeds(const Row& row) {
  fmt::print(
      "\n| machines are faster | first token | without a store | breaks first | at turns/s "
      "| the store then carries |\n|---|---|---|---|---|---|\n");
  const double block = row.shape->block_bytes();
  for (const double speed : {1.0, 10.0, 30.0, 100.0, 300.0}) {
    const Load load = load_of(row.seen, Machine(*row.shape, speed), block);
    const Limit limit = first_limit(load, row.seen, block);
    fmt::print(
        "| {:.0f} x | {:.3f} s | {:.3f} s | {} | {:.0f} | {:.1f} GB/s |\n", speed,
        load.policy_seconds, load.without_seconds, limit.what, limit.turns,
        limit.turns * (load.fetched_blocks + row.seen.new_blocks / row.seen.count) * block / 1e9);
  }
}

// Prints the effect of slower links between machines and store.
void print_links(const Row& row) {
  fmt::print(
      "\n| a machine gets | first token | all fetched | nothing fetched | fetched of what "
      "the store has |\n|---|---|---|---|---|\n");
  const double block = row.shape->block_bytes();
  double in_store = 0;
  for (const Turn& t : row.seen.turns)
    in_store += static_cast<double>(t.times) / row.seen.count * (t.stored - t.here);
  for (const double megabytes : {1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3}) {
    Machine machine(*row.shape);
    machine.byte_seconds = 1e-6 / megabytes;
    const Load load = load_of(row.seen, machine, block);
    fmt::print("| {} MB/s | {:.2f} s | {:.2f} s | {:.2f} s | {:.0f} % |\n", megabytes,
               load.policy_seconds, load.fetch_seconds, load.without_seconds,
               100 * load.fetched_blocks / in_store);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const uint32_t turns = argc > 1 ? static_cast<uint32_t>(std::atol(argv[1])) : 1200000;
  constexpr double kGb = 1e9, kTb = 1e12;
  std::vector<Row> rows;
  for (const Shape& shape : kShapes) {
    for (const double skew : {0.0, 0.8, 1.1}) {
      for (const double memory : {8.0, 64.0})
        rows.push_back({&shape, {skew, memory * kGb, 20 * kTb, false}});
    }
  }
  const Shape* const middle = &kShapes[2];
  for (const double skew : {0.0, 0.8, 1.1})
    rows.push_back({middle, {skew, 64 * kGb, 20 * kTb, true}});
  for (const double store : {2.0, 200.0})
    rows.push_back({middle, {0.8, 64 * kGb, store * kTb, false}});
  for (Row& row : rows) row.seen = simulate(row.how, row.shape->block_bytes(), turns);
  print_hits(rows);
  fmt::print("\n{}\n", where(rows.back()));
  print_speeds(rows.back());
  print_links(rows.back());
}
