// Batches: every session ends with the bytes that it would have alone, and an error changes none of
// them.
#include <algorithm>
#include <filesystem>
#include <list>
#include <random>

#include "stet/snapshot/snapshot.hpp"
#include "tests/support/models.hpp"

namespace stet::test::batch_tests {
namespace {

constexpr int64_t kCapacity = 300;  // less if a model has fewer positions

using Ids = std::vector<int32_t>;

SessionOptions session_options(const Model& m, Contract contract, KvType type) {
  SessionOptions o = options(1, STET_DEFAULT_ISA, 512, contract);
  o.kv_type = type;
  o.capacity = std::min(kCapacity, m.config().max_positions);
  return o;
}

ComputeOptions compute_of(const Session& s, int threads, const std::string& isa, int64_t chunk) {
  ComputeOptions c = s.compute();
  c.threads = threads;
  c.isa = isa;
  c.chunk = chunk;
  return c;
}

std::vector<Session> forks_of(const std::vector<Session>& sessions) {
  std::vector<Session> forks;
  for (const Session& s : sessions) forks.push_back(s.fork());
  return forks;
}

void append_all(std::vector<Session>& sessions, const std::vector<Ids>& ids) {
  std::vector<BatchEntry> batch;
  for (size_t i = 0; i < sessions.size(); ++i) batch.push_back({&sessions[i], ids[i]});
  append(batch);
}

testing::AssertionResult same_sessions(std::vector<Session>& a, std::vector<Session>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    const testing::AssertionResult same = same_state(a[i], b[i]);
    if (!same) return testing::AssertionFailure() << "session " << i << ": " << same.message();
    if (digests_of(a[i]).state != digests_of(b[i]).state)
      return testing::AssertionFailure() << "session " << i << ": digests differ";
  }
  return testing::AssertionSuccess();
}

// `count` sessions of different lengths and kv types, and the tokens to append to each.
struct Group {
  std::vector<Session> start;
  std::vector<Ids> single, mixed;

  Group(const std::shared_ptr<const Model>& m, Contract contract, size_t count) {
    const size_t lengths[] = {63, 0, 130, 1, 64, 20, 65}, more[] = {1, 70, 1, 2, 33};
    for (size_t i = 0; i < count; ++i) {
      const uint32_t seed = static_cast<uint32_t>(10 * i + 1);
      start.emplace_back(m, session_options(*m, contract, kKvTypes[i % std::size(kKvTypes)]));
      start.back().append(random_tokens(
          *m, std::min(lengths[i % 7], static_cast<size_t>(start.back().capacity()) - 75), seed));
      single.push_back(random_tokens(*m, 1, seed + 1));
      mixed.push_back(random_tokens(*m, more[(i + count) % 5], seed + 2));
    }
  }
  std::vector<Session> alone() const {
    std::vector<Session> all = forks_of(start);
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].append(single[i]);
      all[i].append(mixed[i]);
    }
    return all;
  }
};

std::vector<std::string> instruction_sets(const Model& m) {
  if (*STET_DEFAULT_ISA) return {STET_DEFAULT_ISA};
  std::vector<std::string> names;
  for (const char* const* name = kernel_names(); *name != nullptr; ++name) names.push_back(*name);
  // The portable kernels are slow, so only the small checkpoints use them.
  if (names.size() > 1 && m.weight_bytes() > size_t{4} << 20) names.erase(names.begin());
  return names;
}

class Batch : public testing::TestWithParam<Subject> {
 protected:
  std::shared_ptr<const Model> m = model(GetParam().directory);
};

// Tests each number of sessions with each instruction set. The number of threads alternates, or
// with STET_ALL_WAYS all numbers are tested.
TEST_P(Batch, EverySessionIsAsIfAlone) {
  size_t way = 0;
  for (const size_t count : {1u, 2u, 3u, 5u, 16u}) {
    const Group group(m, GetParam().contract, count);
    std::vector<Session> expected = group.alone();
    for (const std::string& isa : instruction_sets(*m)) {
      ++way;
      for (const int threads : {1, 2, 3, 4}) {
        if (!all_ways() && static_cast<size_t>(threads) != 1 + way % (count == 16 ? 2 : 4))
          continue;
        if (count == 16 && threads > 2) continue;
        std::vector<Session> together = forks_of(group.start);
        together[0].set_compute(compute_of(together[0], threads, isa, 512));
        append_all(together, group.single);
        append_all(together, group.mixed);
        ASSERT_TRUE(same_sessions(together, expected))
            << count << " sessions, " << isa << ", threads " << threads;
      }
    }
  }
}

// A pass may end between two sessions, within one, or after each token.
TEST_P(Batch, PassesMayEndAnywhere) {
  const Group group(m, GetParam().contract, 5);
  std::vector<Session> expected = group.alone();
  for (const int64_t chunk : {1, 3, 4, 34, 64, 105}) {
    std::vector<Session> together = forks_of(group.start);
    together[0].set_compute(compute_of(together[0], 1, STET_DEFAULT_ISA, chunk));
    append_all(together, group.single);
    append_all(together, group.mixed);
    ASSERT_TRUE(same_sessions(together, expected)) << "chunk " << chunk;
  }
}

std::vector<Subject> batch_subjects() {
  std::vector<Subject> chosen;
  for (const Subject& s : subjects_and_contracts()) {
    for (const char* name :
         {"pocket-gemma3", "pocket-llama3", "llama32-tiny-bf16", "gpt2-tiny", "gemma2-tiny",
          "qwen3-tiny", "olmo3-tiny", "smollm3-tiny", "pythia-tiny", "phi3-tiny", "phi4-tiny"}) {
      if (s.name == name || s.name == std::string(name) + "@bf16") chosen.push_back(s);
    }
  }
  return chosen;
}
INSTANTIATE_TEST_SUITE_P(Models, Batch, testing::ValuesIn(batch_subjects()), subject_name);

class LlamaBatch : public testing::Test {
 protected:
  Session session(size_t tokens, uint32_t seed = 1, KvType type = KvType::f32) const {
    Session s(m, session_options(*m, Contract::f32, type));
    s.append(random_tokens(*m, tokens, seed));
    return s;
  }
  const std::shared_ptr<const Model> m = model(data_path("models/llama32-tiny-bf16"));
  TemporaryDirectory scratch;
};

// More sessions than rows of logits computed at a time.
TEST_F(LlamaBatch, ManySessions) {
  const Group group(m, Contract::f32, 50);
  std::vector<Session> expected = group.alone(), together = forks_of(group.start);
  append_all(together, group.single);
  append_all(together, group.mixed);
  EXPECT_TRUE(same_sessions(together, expected));
}

TEST_F(LlamaBatch, ForksInOneBatchAreIndependent) {
  for (const size_t shared : {64u, 100u, 128u}) {
    std::vector<Session> together, expected;
    std::vector<Ids> ids;
    together.push_back(session(shared));
    for (uint32_t i = 0; i < 4; ++i) {
      if (i > 0) together.push_back(together[i / 2].fork());
      expected.push_back(session(shared));
      ids.push_back(random_tokens(*m, 1 + i % 2 * 40, 50 + i));
      expected.back().append(ids.back());
    }
    append_all(together, ids);
    ASSERT_TRUE(same_sessions(together, expected)) << shared << " shared";
    ASSERT_EQ(together[0].kv().block(0), together[3].kv().block(0));
  }
}

TEST_F(LlamaBatch, PrunedSessions) {
  std::vector<Session> together, expected;
  std::vector<Ids> ids;
  for (uint32_t i = 0; i < 6; ++i) {
    for (std::vector<Session>* all : {&together, &expected}) {
      all->push_back(session(150, i, kKvTypes[i / 2]));
      all->back().prune({.keep_last = 70 + i, .sinks = 3, .shift = i % 2 == 1});
    }
    ids.push_back(random_tokens(*m, 1 + 5 * i, i + 20));
    expected.back().append(ids.back());
  }
  append_all(together, ids);
  EXPECT_TRUE(same_sessions(together, expected));
}

// ---------------------------------------------------------------- errors

class FailingBatch : public LlamaBatch {
 protected:
  // Expects the batch to fail with this text and to leave each of its sessions unchanged.
  void expect_error(const std::vector<BatchEntry>& batch, ErrorKind kind,
                    const std::string& text) const {
    std::vector<Session> before;
    for (const BatchEntry& e : batch) {
      if (e.session != nullptr) before.push_back(e.session->fork());
    }
    EXPECT_EQ(error_of([&] { append(batch); }, kind), text);
    size_t i = 0;
    for (const BatchEntry& e : batch) {
      if (e.session == nullptr) continue;
      EXPECT_TRUE(same_state(*e.session, before[i++])) << "after: " << text;
    }
  }
  // Returns a session mapped from a file whose block 0 is damaged in the layer that a pass reads
  // last. It cannot heal, because its tokens do not reproduce an edited block.
  Session damaged(size_t tokens) {
    Session s = session(tokens);
    s.set_value(0, 0, 10, std::vector<float>(static_cast<size_t>(m->config().head_dim), 0.5f));
    Snapshot::save(s, file);
    std::string bytes = read_text(file);
    const size_t at =
        Snapshot::open(file).sections().back().offset + s.kv().shape().content_bytes() - 1;
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    write_file(file, bytes);
    return Snapshot::open(file).restore(m, {.session = options(1)});
  }
  const std::string file = scratch / "s.stet";
  const Ids one = {7}, some = random_tokens(*m, 20, 9),
            outside = {3, static_cast<int32_t>(m->config().vocab_size)};
};

TEST_F(FailingBatch, WrongEntries) {
  Session a = session(100), b = session(30), full = session(290),
          bf16(m, session_options(*m, Contract::bf16, KvType::f32));
  Session other(model(data_path("models/gemma3-tiny")), options(1));
  const std::string vocab = std::to_string(m->config().vocab_size);
  const auto argument = ErrorKind::argument;
  expect_error({{&a, some}, {&b, outside}}, argument,
               "batch[1]: ids[1]: expected a token id in 0.." +
                   std::to_string(m->config().vocab_size - 1) + ", found " + vocab);
  expect_error({{&a, some}, {&b, one}, {&a, one}}, argument,
               "batch[2]: session: expected each session once, found one twice");
  expect_error({{&a, some}, {nullptr, one}}, argument,
               "batch[1]: session: expected a session, found null");
  expect_error({{&a, some}, {&b, {}}}, argument,
               "batch[1]: ids: expected at least one token, found none");
  expect_error({{&a, some}, {&other, one}}, argument,
               "batch[1]: model: expected the model of the first session, found another model");
  expect_error({{&a, some}, {&bf16, one}}, argument,
               "batch[1]: contract: expected f32, as of the first session, found bf16");
  expect_error({{&a, one}, {&full, some}}, ErrorKind::capacity,
               "batch[1]: tokens: expected at most 300 positions (--ctx), found 290 + 20");
  expect_error({{&full, some}}, ErrorKind::capacity,
               "tokens: expected at most 300 positions (--ctx), found 290 + 20");
  append({});
  append(std::vector<BatchEntry>{{&a, some}, {&b, one}});
  Session c = session(100), d = session(30);
  c.append(some);
  d.append(one);
  EXPECT_TRUE(same_state(a, c));
  EXPECT_TRUE(same_state(b, d));
}

// The fault is in the second of three sessions. Token by token, the first is finished by then and
// the third has not started. The first is pruned, so it could not recompute its logits.
TEST_F(FailingBatch, ADamagedBlock) {
  for (const int64_t chunk : {1, 512}) {
    Session a = session(150), b = damaged(130), c = session(63);
    a.prune({.keep_last = 60, .sinks = 2, .shift = true});
    a.set_compute(compute_of(a, 2, STET_DEFAULT_ISA, chunk));
    const Ids before = b.tokens();
    std::vector<Session> kept;
    for (const Session* s : {&a, &c}) kept.push_back(s->fork());
    const std::vector<BatchEntry> batch = {{&a, one}, {&b, one}, {&c, some}};
    EXPECT_EQ(error_of([&] { append(batch); }, ErrorKind::format),
              file +
                  ": batch[1]: KV block 0: expected the bytes that were saved (keys or values were "
                  "edited: they cannot be computed again), "
                  "found others");
    EXPECT_EQ(b.tokens(), before);
    EXPECT_EQ(b.kv().size(), 130);
    EXPECT_TRUE(same_state(a, kept[0])) << "chunk " << chunk;
    EXPECT_TRUE(same_state(c, kept[1])) << "chunk " << chunk;
    append(std::vector<BatchEntry>{{&a, one}, {&c, some}});
    kept[0].append(one);
    kept[1].append(some);
    EXPECT_TRUE(same_state(a, kept[0]));
    EXPECT_TRUE(same_state(c, kept[1]));
  }
}

// One session heals during the batch. No bit of any session changes.
TEST_F(FailingBatch, ATruncatedFileHeals) {
  Session a = session(100), saved = session(80), c = session(100);
  Snapshot::save(saved, file);
  Session b = Snapshot::open(file).restore(m, {.session = options(1)});
  std::filesystem::resize_file(file, 70000);
  append(std::vector<BatchEntry>{{&a, some}, {&b, one}});
  c.append(some);
  saved.append(one);
  EXPECT_TRUE(same_state(a, c));
  EXPECT_TRUE(same_state(b, saved));
  EXPECT_EQ(b.take_healed().size(), 1u);
}

// Calls the batch from a sink of one of its sessions, in the middle of a pass.
TEST_F(FailingBatch, ASessionThatIsAppending) {
  Session a = session(100), b = session(30), before = a.fork(), b_before = b.fork();
  const std::vector<BatchEntry> batch = {{&b, one}, {&a, one}};
  const std::string refusal =
      "batch[1]: append: expected a call after append() has returned, found a call from its sink";
  EXPECT_EQ(
      error_of([&] { a.append(some, [&](int64_t, Rows) { append(batch); }); }, ErrorKind::argument),
      refusal);
  EXPECT_EQ(error_of([&] { a.append(some, nullptr, nullptr, [&](int64_t) { append(batch); }); },
                     ErrorKind::argument),
            refusal);
  EXPECT_TRUE(same_state(a, before));
  EXPECT_TRUE(same_state(b, b_before));
}

// Progress is reported last, so nothing can throw after it. A pruned session must keep the logits
// that it cannot recompute.
TEST_F(FailingBatch, ProgressOfOnePrunedSession) {
  Session a = session(150), b = session(150);
  for (Session* s : {&a, &b}) s->prune({.keep_last = 60, .sinks = 2, .shift = false});
  EXPECT_THROW(
      a.append(some, nullptr, nullptr, [](int64_t) { throw std::runtime_error("progress"); }),
      std::runtime_error);
  EXPECT_TRUE(same_state(a, b));
}

// ---------------------------------------------------------------- schedules

// Random batches of random sessions, which are forked, rewound and pruned in between. Each is
// compared with a session that runs alone.
class Crowd {
 public:
  Crowd(std::shared_ptr<const Model> m, Contract contract, uint32_t seed)
      : model_(std::move(m)), contract_(contract), random_(seed) {
    while (members_.size() < 3) add();
  }
  void step() {
    switch (draw(8)) {
      case 0:
        return add();
      case 1:
        return fork();
      case 2:
        return rewind(pick());
      case 3:
        return prune(pick());
      case 4:
        return advance(true);
      default:
        return advance(false);
    }
  }
  testing::AssertionResult same() {
    for (auto& [together, alone] : members_) {
      const testing::AssertionResult same = same_state(together, alone);
      if (!same) return same;
      if (digests_of(together).state != digests_of(alone).state)
        return testing::AssertionFailure() << "digests differ";
    }
    return testing::AssertionSuccess();
  }

 private:
  struct Member {
    Session together, alone;
  };
  size_t draw(size_t n) { return random_() % n; }
  Member& pick() { return *std::next(members_.begin(), static_cast<long>(draw(members_.size()))); }

  void add() {
    if (members_.size() >= 8) members_.pop_front();
    SessionOptions o = session_options(*model_, contract_, kKvTypes[draw(std::size(kKvTypes))]);
    Session alone(model_, o);
    const std::vector<std::string> sets = instruction_sets(*model_);
    const int64_t chunks[] = {1, 5, 64, 512};
    // With small passes, two threads cost hundreds of barriers for each token.
    const int threads = draw(4) == 0 ? 2 : 1;
    o.compute =
        compute_of(alone, threads, sets[draw(sets.size())], threads == 1 ? chunks[draw(4)] : 64);
    members_.push_back({Session(model_, o), std::move(alone)});
  }
  void fork() {
    const Member& m = pick();
    members_.push_back({m.together.fork(), m.alone.fork()});
    if (members_.size() > 8) members_.pop_front();
  }
  void rewind(Member& m) {
    const int64_t floor = m.alone.prunes().empty() ? 0 : m.alone.prunes().back().left() + 1;
    if (floor > m.alone.size()) return;
    const int64_t to =
        floor + static_cast<int64_t>(draw(static_cast<size_t>(m.alone.size() - floor + 1)));
    m.together.rewind(to);
    m.alone.rewind(to);
  }
  void prune(Member& m) {
    const PruneOptions o{static_cast<int64_t>(10 + draw(60)), static_cast<int64_t>(draw(10)),
                         draw(2) == 0 && !model_->config().ropes.empty()};
    m.together.prune(o);
    m.alone.prune(o);
  }
  // A batch that must fail has an entry too long for its session, at a random place.
  void advance(bool failing) {
    std::vector<Member*> order;
    for (Member& m : members_) order.push_back(&m);
    std::shuffle(order.begin(), order.end(), random_);
    order.resize(1 + draw(order.size()));
    std::list<Ids> ids;
    std::vector<BatchEntry> batch;
    std::vector<std::pair<Session*, const Ids*>> alone;
    const size_t wrong = failing ? draw(order.size()) : order.size();
    for (size_t i = 0; i < order.size(); ++i) {
      Session& s = order[i]->together;
      const int64_t room = s.capacity() - s.size(),
                    n = draw(3) == 0 ? 1 + static_cast<int64_t>(draw(70)) : 1;
      if (room == 0 && i != wrong) continue;
      ids.push_back(random_tokens(*model_,
                                  static_cast<size_t>(i == wrong ? room + 1 : std::min(n, room)),
                                  static_cast<uint32_t>(random_())));
      batch.push_back({&s, ids.back()});
      alone.emplace_back(&order[i]->alone, &ids.back());
    }
    if (failing) {
      EXPECT_THROW(append(batch), Error);
      return;
    }
    append(batch);
    for (const auto& [session, tokens] : alone) session->append(*tokens);
  }

  std::shared_ptr<const Model> model_;
  Contract contract_;
  std::mt19937 random_;
  std::list<Member> members_;
};

TEST(BatchSchedules, EqualSessionsThatRunAlone) {
  const std::vector<Subject> all = {
      {"llama", data_path("models/llama32-tiny-bf16")},
      {"llama@bf16", data_path("models/llama32-tiny-bf16"), Contract::bf16},
      {"gemma", data_path("models/gemma3-tiny-bf16")},
      {"gpt2", data_path("models/gpt2-tiny")}};
  for (uint32_t seed = 1; seed <= 24; ++seed) {
    const Subject& subject = all[seed % all.size()];
    Crowd crowd(model(subject.directory), subject.contract, seed);
    for (int step = 0; step < 25; ++step) crowd.step();
    ASSERT_TRUE(crowd.same()) << subject.name << ", seed " << seed;
  }
}

// The layer callback comes once for each layer and changes no bit.
TEST(Batch, LayersGiveASign) {
  for (const Subject& subject : subjects()) {
    const auto m = model(subject.directory, subject.contract);
    Session plain(m, options(2, STET_DEFAULT_ISA, 7, subject.contract)), watched = plain.fork();
    const Ids ids(20, 1);
    int64_t layers = 0;
    plain.append(ids);
    const BatchEntry entry{&watched, ids};
    append({&entry, 1}, {[&] { ++layers; }});
    EXPECT_EQ(layers, 3 * m->config().layers) << subject.name;
    EXPECT_TRUE(same_state(plain, watched)) << subject.name;
  }
}

}  // namespace
}  // namespace stet::test::batch_tests
