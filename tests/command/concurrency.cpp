// Saves snapshots while others save and read: from threads with sessions of one model, and from
// processes that use one file name.
#include <atomic>
#include <map>
#include <thread>

#include "stet/snapshot/snapshot.hpp"
#include "tests/support/models.hpp"
#include "tests/support/run_command.hpp"

namespace stet::test::concurrency_tests {
namespace {

constexpr int kSavers = 4;

class Concurrency : public testing::Test {
 protected:
  // Returns a session whose length and tokens depend on i.
  Session session(int i, int threads = 1) const {
    Session s(m, options(threads));
    s.append(random_tokens(*m, static_cast<size_t>(40 + 50 * i), static_cast<uint32_t>(i)));
    return s;
  }
  std::string digest_of_file(const std::string& path) const {
    Session s = Snapshot::open(path).restore(m, {.session = options(1)});  // checks every block
    return digest_text(digests_of(s).state);
  }
  static std::string name(int i, int round) {
    return std::to_string(i) + "." + std::to_string(round);
  }
  void save_in_parallel(int threads) const {
    const TemporaryDirectory where;
    std::vector<std::thread> savers;
    for (int i = 0; i < kSavers; ++i) {
      savers.emplace_back([&, i] {
        Session s = session(i, threads);
        for (int round = 0; round < 10; ++round) {
          s.append(random_tokens(*m, 7, static_cast<uint32_t>(100 * i + round)));
          Snapshot::save(s, where / name(i, round));
        }
      });
    }
    for (std::thread& t : savers) t.join();
    ASSERT_EQ(where.names().size(), static_cast<size_t>(10 * kSavers));
    for (int i = 0; i < kSavers; ++i) {
      Session expected = session(i);
      for (int round = 0; round < 10; ++round) {
        expected.append(random_tokens(*m, 7, static_cast<uint32_t>(100 * i + round)));
        const Snapshot saved = Snapshot::open(where / name(i, round));
        Session found = saved.restore(m, {.session = options(1)});
        ASSERT_TRUE(same_state(found, expected)) << "session " << i << ", round " << round;
      }
    }
  }
  // Reads the file until no saver is left. Counts how often it held each state. Any other state, or
  // a damaged file, is a failure.
  std::map<std::string, int> watch(const std::string& path,
                                   const std::map<std::string, int>& states,
                                   std::atomic<int>& savers) const {
    std::map<std::string, int> seen;
    do {
      const std::string found = digest_of_file(path);
      EXPECT_TRUE(states.contains(found)) << found;
      ++seen[found];
    } while (savers > 0);
    return seen;
  }

  const std::string directory = data_path("models/llama31-tiny");
  std::shared_ptr<const Model> m = model(directory);
  TemporaryDirectory scratch;
};

// Each session computes and saves as if it were alone, with two threads each, so teams run side by
// side.
TEST_F(Concurrency, SessionsOfOneModelSaveInParallel) {
  const TeamBackend before = set_team_backend(TeamBackend::automatic);
  for (const std::string& team : team_backends()) {
    set_team_backend(*team_backend_of(team));
    save_in_parallel(1);
    save_in_parallel(2);
  }
  set_team_backend(before);
}

// Forks share full blocks, which all savers read at once.
TEST_F(Concurrency, ForksSaveInParallel) {
  Session base = session(4);
  std::vector<Session> forks;
  for (int i = 0; i < kSavers; ++i) forks.push_back(base.fork());
  std::vector<std::thread> savers;
  for (int i = 0; i < kSavers; ++i) {
    savers.emplace_back([&, i] {
      for (int round = 0; round < 10; ++round) {
        forks[static_cast<size_t>(i)].append({{i, round}});
        Snapshot::save(forks[static_cast<size_t>(i)], scratch / std::to_string(i));
      }
    });
  }
  for (std::thread& t : savers) t.join();
  for (int i = 0; i < kSavers; ++i) {
    Session expected = session(4),
            found = Snapshot::open(scratch / std::to_string(i)).restore(m, {.session = options(1)});
    for (int round = 0; round < 10; ++round) expected.append({{i, round}});
    EXPECT_TRUE(same_state(found, expected)) << "fork " << i;
  }
}

TEST_F(Concurrency, ThreadsSaveToOneNameWhileAnotherReads) {
  const std::string path = scratch / "s.stet";
  std::vector<Session> sessions;
  std::map<std::string, int> states;
  for (int i = 0; i < kSavers; ++i) {
    sessions.push_back(session(i));
    states[digest_text(Snapshot::save(sessions.back(), path).state)] = i;
  }
  ASSERT_EQ(states.size(), static_cast<size_t>(kSavers));
  std::atomic<int> left = kSavers;
  std::vector<std::thread> savers;
  for (Session& s : sessions) {
    savers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) Snapshot::save(s, path);
      --left;
    });
  }
  const std::map<std::string, int> seen = watch(path, states, left);
  for (std::thread& t : savers) t.join();
  EXPECT_FALSE(seen.empty());
  EXPECT_TRUE(states.contains(digest_of_file(path)));
  EXPECT_EQ(scratch.names(), std::vector<std::string>{"s.stet"});
}

TEST_F(Concurrency, ProcessesSaveToOneNameWhileAnotherReads) {
  const std::string path = scratch / "s.stet";
  std::map<std::string, int> states;
  std::vector<Args> commands;
  for (int i = 0; i < 2; ++i) {
    const Session s = session(i);
    std::string ids;
    for (const int32_t id : s.tokens()) ids += (ids.empty() ? "" : ",") + std::to_string(id);
    commands.push_back({"save", "-m", directory, "--threads", "1", "--ids", ids, "-o", path});
    ASSERT_EQ(run_stet(commands.back()).status, 0);
    states[digest_of_file(path)] = i;
  }
  ASSERT_EQ(states.size(), 2u);
  std::atomic<int> left = 2, failed = 0;
  std::vector<std::thread> savers;
  for (const Args& command : commands) {
    savers.emplace_back([&] {
      for (int round = 0; round < 40; ++round) failed += run_stet(command).status != 0;
      --left;
    });
  }
  const std::map<std::string, int> seen = watch(path, states, left);
  for (std::thread& t : savers) t.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(seen.size(), 2u);  // both states were seen
  EXPECT_EQ(scratch.names(), std::vector<std::string>{"s.stet"});
}

}  // namespace
}  // namespace stet::test::concurrency_tests
