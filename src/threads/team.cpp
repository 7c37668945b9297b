#include "stet/threads/team.hpp"

#include <algorithm>
#include <exception>
#include <iterator>
#include <mutex>
#include <utility>

#include "src/threads/member.hpp"
#include "src/threads/openmp.hpp"
#include "src/threads/processors.hpp"
#include "src/threads/thread_pool.hpp"
#include "stet/base/error.hpp"

namespace stet {
namespace {

std::atomic<TeamBackend> chosen_backend{TeamBackend::automatic};
std::atomic<Executor*> process_executor{nullptr};
std::atomic<bool> all_threads{false};

// Returns whether the runtime can be used: it ends the process for a setting that it does not
// understand.
bool openmp_is_usable() {
  static const bool usable = [] {
    if (!openmp_built()) return false;
    try {
      check_openmp_environment();
    } catch (const Error&) {
      return false;
    }
    return true;
  }();
  return usable;
}

// Chooses a backend. GNU's runtime keeps threads spinning for milliseconds. While other programs
// run, small models then lose most of their speed (bench/threads.md). Only environment variables
// could change that.
TeamBackend resolved(TeamBackend backend) {
  if (backend == TeamBackend::automatic) backend = chosen_backend.load(std::memory_order_relaxed);
  if (backend == TeamBackend::automatic && openmp_is_tunable()) backend = TeamBackend::openmp;
  return backend == TeamBackend::openmp && openmp_is_usable() ? backend : TeamBackend::own;
}

Executor* executor_of(const TeamOptions& options) {
  return options.executor != nullptr ? options.executor : process_executor.load();
}

// Runs the members that the executor leaves out on this thread. A pool that was shut down may drop
// all of them, and a pass whose operations were not done gives a wrong state.
void run_by(Executor& executor, int size, const std::function<void(Team)>& work) {
  WorkQueue queue;
  std::vector<std::atomic<bool>> ran(static_cast<size_t>(size));
  executor.run(size, [&](int rank) {
    run_member(rank, size, queue, work);
    ran[static_cast<size_t>(rank)].store(true);
  });
  for (int rank = 0; rank < size; ++rank) {
    if (!ran[static_cast<size_t>(rank)].load()) run_member(rank, size, queue, work);
  }
}

void run(const TeamOptions& options, ThreadPool::Wait wait, const std::function<void(Team)>& work) {
  const int size = std::min(options.threads, kMaxThreads);
  if (size <= 1 || is_member()) return run_alone(work);
  if (Executor* const executor = executor_of(options)) return run_by(*executor, size, work);
  if (resolved(options.backend) == TeamBackend::openmp &&
      run_openmp(size, wait == ThreadPool::Wait::for_started, work)) {
    return;
  }
  ThreadPool::of_process().run(size, wait, work);
}

constexpr std::pair<TeamBackend, const char*> kNames[] = {{TeamBackend::automatic, "automatic"},
                                                          {TeamBackend::openmp, "openmp"},
                                                          {TeamBackend::own, "own"}};

}  // namespace

Range part_of(size_t n, size_t parts, size_t i) {
  const size_t each = n / parts, more = n % parts, begin = i * each + std::min(i, more);
  return {begin, begin + each + (i < more ? 1 : 0)};
}

size_t Team::parts_of(size_t n, size_t least) const {
  if (queue == nullptr) return 1;
  // All threads get equally many parts, so the slowest is late by one part at most.
  constexpr size_t kEach = 8;
  const size_t threads = static_cast<size_t>(size);
  if (n < threads * least) return std::max<size_t>(1, std::min(n, threads));
  return std::min(threads * kEach, n / least / threads * threads);
}

void run_team(const TeamOptions& options, const std::function<void(Team)>& work) {
  run(options, ThreadPool::Wait::for_all, work);
}

void run_operations(const TeamOptions& options, const std::function<void(Team)>& work) {
  run(options, ThreadPool::Wait::for_started, work);
}

void run_each(const TeamOptions& options, size_t n, const std::function<void(size_t)>& work) {
  std::mutex mutex;
  size_t failed = n;
  std::exception_ptr failure;
  run_operations(options, [&](Team team) {
    team.each(n, [&](size_t i) {
      {
        const std::lock_guard lock(mutex);
        if (i > failed) return;
      }
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < failed) failure = std::current_exception();
        failed = std::min(failed, i);
      }
    });
  });
  if (failure) std::rethrow_exception(failure);
}

const char* team_backend_name(TeamBackend backend) {
  return kNames[static_cast<size_t>(backend)].second;
}

std::optional<TeamBackend> team_backend_of(std::string_view name) {
  for (const auto& [backend, its] : kNames) {
    if (name == its) return backend;
  }
  return {};
}

std::vector<std::string> team_backends() {
  if (openmp_built()) return {"openmp", "own"};
  return {"own"};
}

void check_team_backend(TeamBackend backend) {
  if (backend != TeamBackend::openmp) return;
  if (!openmp_built())
    throw Error(ErrorKind::unsupported, "", "team", "",
                "openmp is not available: this stet was built without OpenMP");
  check_openmp_environment();
}

TeamBackend set_team_backend(TeamBackend backend) {
  check_team_backend(backend);
  return chosen_backend.exchange(backend);
}

std::string team_runtime(TeamBackend backend) {
  if (process_executor.load() != nullptr) return "an executor of the program's own";
  if (resolved(backend) == TeamBackend::own) return "own threads";
  return "OpenMP (" + openmp_library() + ")";
}

int threads_that_pay(int threads, uint64_t bytes) {
  if (threads <= 1 || all_threads.load(std::memory_order_relaxed)) return threads;
  static const int processors = count_processors();
  // A thread reads about 20 GB/s, and each thread adds about 140 ns to an operation for
  // synchronization. Both were measured on an Emerald Rapids with 16 cores and on a Zen 5. With n
  // threads an operation takes bytes / (20 GB/s n) + 140 ns n, which is least where n^2 is bytes /
  // 2800.
  constexpr uint64_t kBytes = 2800;
  const uint64_t most = static_cast<uint64_t>(std::min(threads, processors));
  uint64_t n = 1;
  while (n < most && n * (n + 1) * kBytes < bytes) ++n;
  return static_cast<int>(n);
}

bool use_all_threads(bool all) { return all_threads.exchange(all); }

Executor* set_executor(Executor* executor) { return process_executor.exchange(executor); }

int default_threads() {
  const TeamBackend chosen = chosen_backend.load(std::memory_order_relaxed);
  if (chosen == TeamBackend::openmp || (chosen == TeamBackend::automatic && openmp_is_tunable())) {
    check_openmp_environment();
    return openmp_threads();
  }
  return count_processors();
}

}  // namespace stet
