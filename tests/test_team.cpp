// Teams: every piece once, in every order in which the system lets threads come, and no thread that
// a run could wait for in vain.
#include "stet/team.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "src/threads/processors.hpp"

namespace stet::test {
namespace {

// Operations that each need all of the one before: `rows` numbers, of which each becomes the sum of
// its neighbours. Members sleep between pieces now and then, as if put aside.
class Chain {
 public:
  Chain(size_t rows, size_t operations, unsigned one_in)
      : first_(rows), operations_(operations), one_in_(one_in) {
    std::iota(first_.begin(), first_.end(), 1);
  }

  std::vector<uint64_t> run(int threads) const {
    std::vector<uint64_t> from = first_, to(from.size());
    run_operations(threads, [&](Team t) {
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

TEST(Team, OperationsFollowEachOtherWhoeverComes) {
  for (const size_t rows : {size_t{1}, size_t{2}, size_t{7}, size_t{100}}) {
    for (const unsigned one_in : {0u, 50u}) {
      const Chain chain(rows, 101, one_in);
      const std::vector<uint64_t> expected = Chain(rows, 101, 0).run(1);
      for (const int threads : {2, 3, 8}) {
        for (int i = 0; i < 20; ++i)
          ASSERT_EQ(chain.run(threads), expected) << rows << " rows, " << threads << " threads";
      }
    }
  }
}

// Runs so short that helpers often come when they are over, beside runs that all must join, on
// teams of changing size.
TEST(Team, ShortRunsOneAfterTheOther) {
  for (int i = 0; i < 3000; ++i) {
    const int threads = 1 + i % 5;
    std::vector<int> done(static_cast<size_t>(1 + i % 3), 0), came(static_cast<size_t>(threads), 0);
    run_operations(threads,
                   [&](Team t) { t.each(done.size(), [&](size_t piece) { ++done[piece]; }); });
    ASSERT_EQ(done, std::vector<int>(done.size(), 1));
    run_team(threads, [&](Team t) {
      ASSERT_EQ(t.size, threads);
      ++came[static_cast<size_t>(t.rank)];
    });
    ASSERT_EQ(came, std::vector<int>(came.size(), 1));
  }
}

TEST(Team, CallersHaveTeamsOfTheirOwn) {
  const Chain chain(40, 200, 100);
  const std::vector<uint64_t> expected = Chain(40, 200, 0).run(1);
  std::vector<std::vector<uint64_t>> results(6);
  std::vector<std::thread> callers;
  for (std::vector<uint64_t>& result : results)
    callers.emplace_back([&] { result = chain.run(3); });
  for (std::thread& t : callers) t.join();
  for (const std::vector<uint64_t>& result : results) EXPECT_EQ(result, expected);
}

TEST(Team, ARunInsideOfARunIsRight) {
  const Chain chain(10, 20, 0);
  const std::vector<uint64_t> expected = chain.run(1);
  std::vector<std::vector<uint64_t>> results(8);
  run_each(3, results.size(), [&](size_t i) { results[i] = chain.run(2); });
  for (const std::vector<uint64_t>& result : results) EXPECT_EQ(result, expected);
}

size_t threads_of_this_process() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                                           std::filesystem::directory_iterator()));
}

// Neither the caller nor a helper makes threads for it.
TEST(Team, ARunInsideOfARunMakesNoThreads) {
  run_team(3, [](Team) {});
  const size_t before = threads_of_this_process();
  std::vector<int> inner(3, 0);
  run_team(3, [&](Team outer) {
    run_team(4, [&](Team t) { inner[static_cast<size_t>(outer.rank)] = t.size; });
  });
  EXPECT_EQ(inner, (std::vector<int>{1, 1, 1}));
  EXPECT_EQ(threads_of_this_process(), before);
}

// A helper that is put aside before it comes to a run: it stands in a signal handler, which reads a
// pipe.
int put_aside[2], standing[2];
void stand_aside(int) {
  char byte = 0;
  (void)!write(standing[1], &byte, 1);
  (void)!read(put_aside[0], &byte, 1);
}

// Waiting for it would last until the alarm ends the process.
TEST(Team, APassDoesNotWaitForAHelperThatHasNotCome) {
#if defined(STET_THREAD_SANITIZER)
  GTEST_SKIP() << "ThreadSanitizer holds signals back from a thread that sleeps";
#endif
  ASSERT_EQ(pipe(put_aside), 0);
  ASSERT_EQ(pipe(standing), 0);
  pthread_t helper{};
  run_team(2, [&](Team t) {
    if (t.rank == 1) helper = pthread_self();
  });
  struct sigaction action = {}, before = {};
  action.sa_handler = stand_aside;
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  ASSERT_EQ(pthread_kill(helper, SIGUSR1), 0);
  char byte = 0;
  ASSERT_EQ(read(standing[0], &byte, 1), 1);  // it stands
  alarm(60);
  std::vector<int> ranks;
  run_operations(2, [&](Team t) {
    for (int op = 0; op < 50; ++op) t.each(5, [&](size_t) { ranks.push_back(t.rank); });
  });
  alarm(0);
  EXPECT_EQ(ranks, std::vector<int>(250, 0));
  ASSERT_EQ(write(put_aside[1], &byte, 1), 1);
  std::vector<int> came(2, 0);
  run_team(2, [&](Team t) { came[static_cast<size_t>(t.rank)] = 1; });  // and it comes again
  EXPECT_EQ(came, (std::vector<int>{1, 1}));
  ASSERT_EQ(sigaction(SIGUSR1, &before, nullptr), 0);
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

TEST(Team, TheFirstExceptionIsThrown) {
  for (int i = 0; i < 50; ++i) {
    try {
      run_each(4, 40, [](size_t piece) {
        if (piece % 10 == 7) throw std::runtime_error(std::to_string(piece));
      });
      FAIL();
    } catch (const std::runtime_error& e) {
      ASSERT_STREQ(e.what(), "7");
    }
  }
}

// In a process that was forked, which has none of its parent's helpers; its exit status, or -1.
template <class F>
int in_child(F f) {
  const pid_t child = fork();
  if (child == 0) _exit(f());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Team, AForkedProcessMakesItsOwn) {
  const Chain chain(40, 100, 0);
  const std::vector<uint64_t> expected = chain.run(3);
  EXPECT_EQ(in_child([&] {
              int came = 0;
              std::thread([&] { came += chain.run(3) == expected; }).join();
              std::vector<int> members(4, 0);
              run_team(4, [&](Team t) { members[static_cast<size_t>(t.rank)] = t.size; });
              return came == 1 && chain.run(3) == expected && members == std::vector<int>(4, 4) ? 0
                                                                                                : 1;
            }),
            0);
  EXPECT_EQ(chain.run(3), expected);
}

// Address space for some stacks and no more.
TEST(Team, ThreadsThatTheSystemRefusesAreDoneWithout) {
#if defined(STET_SANITIZED)
  GTEST_SKIP() << "sanitizers need the address space";
#endif
  EXPECT_EQ(in_child([] {
              std::ifstream statm("/proc/self/statm");
              size_t pages = 0;
              statm >> pages;
              const rlim_t most =
                  pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + (size_t{64} << 20);
              const rlimit limit{most, most};
              if (setrlimit(RLIMIT_AS, &limit) != 0) return 2;
              std::vector<int> members(64, 0);
              run_team(64, [&](Team t) { members[static_cast<size_t>(t.rank)] = t.size; });
              const int size = members[0];
              if (size < 1 || size >= 64) return 3;
              for (int i = 0; i < 64; ++i) {
                if (members[static_cast<size_t>(i)] != (i < size ? size : 0)) return 4;
              }
              return 0;
            }),
            0);
}

}  // namespace
}  // namespace stet::test
