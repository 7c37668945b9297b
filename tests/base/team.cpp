// Thread teams run every piece exactly once in whatever order threads arrive, and never wait for a
// thread that does not come.
#include "stet/threads/team.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "src/threads/helper_worth.hpp"
#include "src/threads/processors.hpp"
#include "stet/base/error.hpp"
#include "tests/support/error_of.hpp"

namespace stet::test::team_tests {
namespace {

// Operations that each need the whole result of the one before: each of `rows` numbers becomes a
// sum with its neighbour. Members sometimes sleep between pieces, as if the system had preempted
// them.
class Chain {
 public:
  Chain(size_t rows, size_t operations, unsigned one_in)
      : first_(rows), operations_(operations), one_in_(one_in) {
    std::iota(first_.begin(), first_.end(), 1);
  }

  std::vector<uint64_t> run(const TeamOptions& options) const {
    std::vector<uint64_t> from = first_, to(from.size());
    run_operations(options, [&](Team t) {
      std::minstd_rand random(static_cast<unsigned>(t.rank) + 1);
      uint64_t *a = from.data(), *b = to.data();
      for (size_t op = 0; op < operations_; ++op, std::swap(a, b)) {
        t.each_range(from.size(), 1, [&](Range r) {
          for (size_t i = r.begin; i < r.end; ++i) b[i] = a[i] + 3 * a[(i + 1) % from.size()];
          if (one_in_ > 0 && random() % one_in_ == 0)
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        });
      }
    });
    return operations_ % 2 == 0 ? from : to;
  }

 private:
  std::vector<uint64_t> first_;
  size_t operations_;
  unsigned one_in_;
};

// A fixture that runs each test on every backend of this build.
class Teams : public testing::TestWithParam<std::string> {
 protected:
  TeamOptions of(int threads) const { return {threads, *team_backend_of(GetParam())}; }
};
INSTANTIATE_TEST_SUITE_P(Backends, Teams, testing::ValuesIn(team_backends()),
                         [](const auto& info) { return info.param; });

TEST_P(Teams, OperationsFollowEachOtherForAnyHelpers) {
  for (const size_t rows : {size_t{1}, size_t{2}, size_t{7}, size_t{100}}) {
    for (const unsigned one_in : {0u, 50u}) {
      const Chain chain(rows, 101, one_in);
      const std::vector<uint64_t> expected = Chain(rows, 101, 0).run(1);
      for (const int threads : {2, 3, 8}) {
        for (int i = 0; i < 20; ++i)
          ASSERT_EQ(chain.run(of(threads)), expected) << rows << " rows, " << threads << " threads";
      }
    }
  }
}

// Runs are so short that helpers often arrive after the end. They alternate with runs that all
// members must join, on teams of changing size.
TEST_P(Teams, ShortRunsOneAfterTheOther) {
  for (int i = 0; i < 3000; ++i) {
    const int threads = 1 + i % 5;
    std::vector<int> done(static_cast<size_t>(1 + i % 3), 0), came(static_cast<size_t>(threads), 0);
    run_operations(of(threads),
                   [&](Team t) { t.each(done.size(), [&](size_t piece) { ++done[piece]; }); });
    ASSERT_EQ(done, std::vector<int>(done.size(), 1));
    run_team(of(threads), [&](Team t) {
      ASSERT_EQ(t.size, threads);
      ++came[static_cast<size_t>(t.rank)];
    });
    ASSERT_EQ(came, std::vector<int>(came.size(), 1));
  }
}

TEST_P(Teams, SeveralCallersAtOnce) {
  const Chain chain(40, 200, 100);
  const std::vector<uint64_t> expected = Chain(40, 200, 0).run(1);
  std::vector<std::vector<uint64_t>> results(6);
  std::vector<std::thread> callers;
  for (std::vector<uint64_t>& result : results)
    callers.emplace_back([&] { result = chain.run(of(3)); });
  for (std::thread& t : callers) t.join();
  for (const std::vector<uint64_t>& result : results) EXPECT_EQ(result, expected);
}

TEST_P(Teams, ARunInsideOfARunIsRight) {
  const Chain chain(10, 20, 0);
  const std::vector<uint64_t> expected = chain.run(1);
  std::vector<std::vector<uint64_t>> results(8);
  run_each(of(3), results.size(), [&](size_t i) { results[i] = chain.run(of(2)); });
  for (const std::vector<uint64_t>& result : results) EXPECT_EQ(result, expected);
}

size_t threads_of_this_process() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                                           std::filesystem::directory_iterator()));
}

// Neither the caller nor a helper creates threads for a nested run.
TEST_P(Teams, ARunInsideOfARunMakesNoThreads) {
  run_team(of(3), [](Team) {});
  const size_t before = threads_of_this_process();
  std::vector<int> inner(3, 0);
  run_team(of(3), [&](Team outer) {
    run_team(of(4), [&](Team t) { inner[static_cast<size_t>(outer.rank)] = t.size; });
  });
  EXPECT_EQ(inner, (std::vector<int>{1, 1, 1}));
  EXPECT_EQ(threads_of_this_process(), before);
}

// Keeps a helper from joining a run: the helper blocks in a signal handler that reads a pipe.
int put_aside[2], standing[2];
void stand_aside(int) {
  char byte = 0;
  (void)!write(standing[1], &byte, 1);
  (void)!read(put_aside[0], &byte, 1);
}

// A run that waited for the helper, as an OpenMP parallel region does, would last until the alarm
// ends the process.
TEST(Team, APassDoesNotWaitForAHelperThatHasNotJoined) {
#if defined(STET_THREAD_SANITIZER)
  GTEST_SKIP() << "ThreadSanitizer holds signals back from a thread that sleeps";
#endif
  ASSERT_EQ(pipe(put_aside), 0);
  ASSERT_EQ(pipe(standing), 0);
  pthread_t helper{};
  run_team({2, TeamBackend::own}, [&](Team t) {
    if (t.rank == 1) helper = pthread_self();
  });
  struct sigaction action = {}, before = {};
  action.sa_handler = stand_aside;
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  ASSERT_EQ(pthread_kill(helper, SIGUSR1), 0);
  char byte = 0;
  ASSERT_EQ(read(standing[0], &byte, 1), 1);  // the helper is blocked
  alarm(60);
  std::vector<int> ranks;
  run_operations({2, TeamBackend::own}, [&](Team t) {
    for (int op = 0; op < 50; ++op) t.each(5, [&](size_t) { ranks.push_back(t.rank); });
  });
  alarm(0);
  EXPECT_EQ(ranks, std::vector<int>(250, 0));
  ASSERT_EQ(write(put_aside[1], &byte, 1), 1);
  std::vector<int> came(2, 0);
  run_team({2, TeamBackend::own},
           [&](Team t) { came[static_cast<size_t>(t.rank)] = 1; });  // the helper joins again
  EXPECT_EQ(came, (std::vector<int>{1, 1}));
  ASSERT_EQ(sigaction(SIGUSR1, &before, nullptr), 0);
}

// Returns true if the system reports that a thread of this process sleeps.
bool sleeps(pid_t thread) {
  std::ifstream stat("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(stat, text);
  const size_t name_ends = text.rfind(')');
  return name_ends != std::string::npos && text[name_ends + 2] == 'S';
}

// One write ends an operation and begins the next one. A member sleeps until the first has ended,
// and then asks for the second. It must get its piece, and must not see the second as ended.
TEST(Team, AMemberThatWakesAfterAnOperationFindsTheNextOneOpen) {
  WorkQueue queue;
  constexpr uint32_t kEnd = 400;
  std::atomic<pid_t> waiter{0};
  std::atomic<uint32_t> taken{UINT32_MAX}, wrong{0};
  std::thread member([&] {
    waiter = static_cast<pid_t>(gettid());
    for (uint32_t op = 0; op < kEnd; op += 2) {
      while (taken != op) std::this_thread::yield();
      if (queue.take(op, 1) != WorkQueue::kNone) ++wrong;
      if (queue.take(op + 1, 1) != 0 || !queue.finish(op + 1, 1)) ++wrong;
    }
  });
  for (uint32_t op = 0; op < kEnd; op += 2) {
    while (queue.take(op, 1) != 0) std::this_thread::yield();  // until the last one is over
    taken = op;
    while (waiter == 0 || !sleeps(waiter)) std::this_thread::yield();
    EXPECT_TRUE(queue.finish(op, 1));
  }
  member.join();
  EXPECT_EQ(wrong, 0u);
}

TEST(Team, MoreThanAThousandProcessorsAreCounted) {
  const auto machine = [](size_t processors, size_t allowed) {
    return [=](size_t bytes, cpu_set_t* set) {
      if (bytes * 8 < processors) return errno = EINVAL, -1;
      CPU_ZERO_S(bytes, set);
      for (size_t i = processors - allowed; i < processors; ++i) CPU_SET_S(i, bytes, set);
      return 0;
    };
  };
  EXPECT_EQ(count_processors(machine(2, 2)), 2);
  EXPECT_EQ(count_processors(machine(1024, 1024)), 1024);
  EXPECT_EQ(count_processors(machine(1025, 1025)), 1025);
  EXPECT_EQ(count_processors(machine(4096, 3)), 3);
  EXPECT_EQ(count_processors(machine(8192, 8192)), 8192);
  EXPECT_EQ(count_processors([](size_t, cpu_set_t*) { return errno = EPERM, -1; }), 1);
}

TEST_P(Teams, TheFirstExceptionIsThrown) {
  for (int i = 0; i < 50; ++i) {
    try {
      run_each(of(4), 40, [](size_t piece) {
        if (piece % 10 == 7) throw std::runtime_error(std::to_string(piece));
      });
      FAIL();
    } catch (const std::runtime_error& e) {
      ASSERT_STREQ(e.what(), "7");
    }
  }
}

// Runs `f` in a forked process, which has none of its parent's helpers. Returns its exit status, or
// -1.
template <class F>
int in_child(F f) {
  const pid_t child = fork();
  if (child == 0) _exit(f());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_P(Teams, AForkedProcessMakesItsOwn) {
  const Chain chain(40, 100, 0);
  const std::vector<uint64_t> expected = chain.run(of(3));
  EXPECT_EQ(in_child([&] {
              int came = 0;
              std::thread([&] { came += chain.run(of(3)) == expected; }).join();
              std::vector<int> members(4, 0);
              run_team(of(4), [&](Team t) { members[static_cast<size_t>(t.rank)] = t.size; });
              return came == 1 && chain.run(of(3)) == expected && members == std::vector<int>(4, 4)
                         ? 0
                         : 1;
            }),
            0);
  EXPECT_EQ(chain.run(of(3)), expected);
}

// Limits the address space to a few stacks.
TEST_P(Teams, ThreadsThatTheSystemRefusesAreDoneWithout) {
#if defined(STET_SANITIZED)
  GTEST_SKIP() << "sanitizers need the address space";
#endif
  EXPECT_EQ(in_child([&] {
              std::ifstream statm("/proc/self/statm");
              size_t pages = 0;
              statm >> pages;
              const rlim_t most =
                  pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + (size_t{64} << 20);
              const rlimit limit{most, most};
              if (setrlimit(RLIMIT_AS, &limit) != 0) return 2;
              std::vector<int> members(64, 0);
              run_team(of(64), [&](Team t) { members[static_cast<size_t>(t.rank)] = t.size; });
              const int size = members[0];
              if (size < 1 || size >= 64) return 3;
              for (int i = 0; i < 64; ++i) {
                if (members[static_cast<size_t>(i)] != (i < size ? size : 0)) return 4;
              }
              return 0;
            }),
            0);
}

// All runs together use at most as many helpers as the largest run asked for. No other test runs in
// this process.
TEST_P(Teams, SeveralCallersShareTheHelpers) {
  int while_all_are_taken = 0, afterwards = 0;
  run_team(of(9), [&](Team t) {
    if (t.rank != 0) return;
    std::thread([&] {
      run_team(of(3), [&](Team other) { while_all_are_taken = other.size; });
    }).join();
  });
  std::thread([&] {
    run_team(of(3), [&](Team t) {
      if (t.rank == 0) afterwards = t.size;
    });
  }).join();
  EXPECT_EQ(while_all_are_taken, 1);
  EXPECT_EQ(afterwards, 3);
}

// An executor that runs all members on one thread in reverse order.
class Backwards : public Executor {
 public:
  void run(int size, const std::function<void(int rank)>& member) override {
    sizes.push_back(size);
    for (int rank = size - 1; rank >= 0; --rank) member(rank);
  }
  std::vector<int> sizes;
};

class NewThreads : public Executor {
 public:
  void run(int size, const std::function<void(int rank)>& member) override {
    ++runs;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) threads.emplace_back(member, rank);
    for (std::thread& t : threads) t.join();
  }
  std::atomic<int> runs{0};
};

TEST(Executors, AnExecutorWithoutThreadsRunsAllMembers) {
  const Chain chain(40, 60, 0);
  Backwards executor;
  EXPECT_EQ(chain.run({3, TeamBackend::automatic, &executor}), chain.run(1));
  std::vector<int> ranks;
  run_team({4, TeamBackend::automatic, &executor}, [&](Team t) {
    EXPECT_EQ(t.size, 4);
    ranks.push_back(t.rank);
    run_team({2, TeamBackend::automatic, &executor}, [](Team inner) { EXPECT_EQ(inner.size, 1); });
  });
  EXPECT_EQ(ranks, (std::vector<int>{3, 2, 1, 0}));
  EXPECT_EQ(executor.sizes, (std::vector<int>{3, 4}));
}

// An executor that runs the members below `count` alone, as a pool does that is shut down.
class Drops : public Executor {
 public:
  explicit Drops(int count) : count_(count) {}
  void run(int size, const std::function<void(int rank)>& member) override {
    for (int rank = 0; rank < std::min(size, count_); ++rank) member(rank);
  }

 private:
  int count_;
};

TEST(Executors, MembersThatAreLeftOutRunOnTheCallingThread) {
  const Chain chain(40, 60, 0);
  for (const int count : {0, 1, 2}) {
    Drops executor(count);
    EXPECT_EQ(chain.run({3, TeamBackend::automatic, &executor}), chain.run(1)) << count;
    std::vector<int> ranks;
    run_team({3, TeamBackend::automatic, &executor}, [&](Team t) { ranks.push_back(t.rank); });
    EXPECT_EQ(ranks, (std::vector<int>{0, 1, 2})) << count;
  }
}

TEST(Executors, TheProcessHasOneUntilItIsTakenBack) {
  const Chain chain(40, 60, 50);
  const std::vector<uint64_t> expected = Chain(40, 60, 0).run(1);
  NewThreads executor;
  EXPECT_EQ(set_executor(&executor), nullptr);
  EXPECT_EQ(team_runtime(), "an executor of the program's own");
  std::vector<std::thread> callers;
  std::vector<std::vector<uint64_t>> results(4);
  for (std::vector<uint64_t>& result : results)
    callers.emplace_back([&] { result = chain.run(3); });
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(set_executor(nullptr), &executor);
  for (const std::vector<uint64_t>& result : results) EXPECT_EQ(result, expected);
  EXPECT_EQ(executor.runs, 4);
  EXPECT_EQ(chain.run(3), expected);
  EXPECT_EQ(executor.runs, 4);
}

TEST(Backends, HaveNames) {
  for (const std::string& name : team_backends())
    EXPECT_EQ(team_backend_name(*team_backend_of(name)), name);
  EXPECT_FALSE(team_backend_of("tbb").has_value());
  EXPECT_FALSE(team_backend_of("").has_value());
}

TEST(Backends, TheProcessHasADefault) {
  const std::string runtime = team_runtime();
  const TeamBackend before = set_team_backend(TeamBackend::own);
  EXPECT_EQ(team_runtime(), "own threads");
  EXPECT_EQ(default_threads(), count_processors());
#if defined(STET_HAVE_OPENMP)
  EXPECT_TRUE(team_runtime(TeamBackend::openmp).starts_with("OpenMP (lib"));
#else
  EXPECT_EQ(error_of([] { set_team_backend(TeamBackend::openmp); }),
            "unsupported: team: openmp is not available: this stet was built without OpenMP");
#endif
  EXPECT_EQ(set_team_backend(before), TeamBackend::own);
  EXPECT_EQ(team_runtime(), runtime);
}

// Simulated runs of which helpers do half, 100 us long unless a length is given.
class Worth : public testing::Test {
 protected:
  using us = std::chrono::microseconds;
  void run(us waited, us length = us(100), uint64_t done = 20) {
    const HelperBalance::Clock::time_point start = now;
    now += length;
    HelperBalance::Run r{.helpers = 1, .start = start};
    r.done = now;
    r.tally = {.operations = 10, .pieces = 40, .done = done};
    now += waited;
    worth.note(r, now);
  }
  bool asked() {
    return worth.are_worth_it([&] { return now; });
  }
  HelperBalance worth;
  HelperBalance::Clock::time_point now{};
};

TEST_F(Worth, HelpersThatSaveMoreThanTheyCostStay) {
  for (int i = 0; i < 1000; ++i) {
    EXPECT_TRUE(asked());
    run(us(90));
  }
}

TEST_F(Worth, HelpersThatCostMoreAreTriedNowAndThen) {
  us with{0}, alone{0};
  for (int i = 0; i < 100000; ++i) {
    if (asked()) {
      run(us(3000));
      with += us(3000);
    } else {
      now += us(100);
      alone += us(100);
    }
  }
  EXPECT_GT(with.count(), 0);
  EXPECT_LT(with.count(), alone.count() / 20);
}

// Helpers miss every other run because it ends first. A long run loses little by that.
TEST_F(Worth, LongRunsCanAffordDelays) {
  for (int i = 0; i < 100; ++i) {
    run(us(0), us(50000));
    EXPECT_TRUE(asked());
    run(us(15000), us(90000), 40);
    EXPECT_TRUE(asked());
    run(us(0), us(3000));  // the output layer
    EXPECT_TRUE(asked());
  }
}

// Threads beyond those that pay off, or beyond the processors, are used only if the program demands
// it.
TEST(ThreadsThatPay, GrowWithTheWorkUpToTheProcessors) {
  const bool before = use_all_threads(false);
  const int processors = count_processors();
  EXPECT_EQ(threads_that_pay(1, UINT64_MAX / 2), 1);
  EXPECT_EQ(threads_that_pay(kMaxThreads, UINT64_MAX / 2), processors);
  for (uint64_t bytes : {uint64_t{0}, uint64_t{1000}, uint64_t{100'000}, uint64_t{100'000'000}}) {
    int previous = 0;
    for (int threads : {1, 2, 4, 8, 16, 64}) {
      const int used = threads_that_pay(threads, bytes);
      EXPECT_GE(used, previous);
      EXPECT_GE(used, 1);
      EXPECT_LE(used, std::min(threads, processors));
      previous = used;
    }
  }
  EXPECT_EQ(threads_that_pay(16, 1000), 1) << "a kilobyte is read before a second thread begins";
  use_all_threads(true);
  EXPECT_EQ(threads_that_pay(16, 1000), 16);
  use_all_threads(before);
}

TEST(ProcessorKinds, TellWhatDiffers) {
  const std::filesystem::path root = std::filesystem::path(testing::TempDir()) / "devices";
  const auto write = [&](const std::string& file, const std::string& text) {
    std::filesystem::create_directories((root / file).parent_path());
    std::ofstream(root / file) << text << '\n';
  };
  std::filesystem::remove_all(root);
  EXPECT_EQ(processor_kinds(root), "");
  write("system/node/online", "0");
  EXPECT_EQ(processor_kinds(root), "");
  write("system/node/online", "0-1,4");
  EXPECT_EQ(processor_kinds(root), "3 NUMA nodes");
  write("cpu_core/cpus", "0-15");
  EXPECT_EQ(processor_kinds(root), "3 NUMA nodes");
  write("cpu_atom/cpus", "16-31,40");
  EXPECT_EQ(processor_kinds(root), "3 NUMA nodes, 16 fast and 17 slow cores");
  std::filesystem::remove_all(root / "cpu_core");
  for (const auto& [cpu, capacity] :
       {std::pair{0, "1024"}, std::pair{1, "446"}, std::pair{2, "446"}})
    write("system/cpu/cpu" + std::to_string(cpu) + "/cpu_capacity", capacity);
  write("system/node/online", "0-99999999");  // not a list that a system would give
  EXPECT_EQ(processor_kinds(root), "1 fast and 2 slow cores");
  std::filesystem::remove_all(root);
}

TEST_F(Worth, OneDelayCostsAThirdOfASecondAtMost) {
  run(std::chrono::hours(1));
  EXPECT_FALSE(asked());
  now += std::chrono::milliseconds(334);
  EXPECT_TRUE(asked());
}

}  // namespace
}  // namespace stet::test::team_tests
