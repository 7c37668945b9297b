#include "src/threads/openmp.hpp"

#include "stet/base/error.hpp"

#ifdef STET_HAVE_OPENMP
#include <dlfcn.h>
#include <omp.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "src/threads/helper_worth.hpp"
#include "src/threads/member.hpp"

// LLVM's and Intel's runtimes have these, GNU's does not. They are weak symbols, so their addresses
// are null with GNU's.
extern "C" {
void kmp_set_blocktime(int milliseconds) __attribute__((weak));
int kmp_get_blocktime() __attribute__((weak));
size_t kmp_get_stacksize_s() __attribute__((weak));
}
#endif

namespace stet {

#ifndef STET_HAVE_OPENMP

bool openmp_built() { return false; }
bool openmp_is_tunable() { return false; }
std::string openmp_library() { return ""; }
void check_openmp_environment() {}
int openmp_threads() { return 1; }
bool run_openmp(int, bool, const std::function<void(Team)>&) { return false; }

#else

namespace {

// Call this before the runtime's first use. LLVM's registers the process in a file of shared memory.
// A process that was killed meanwhile leaves the file empty, and reading it would end a later process
// of the same number with SIGBUS.
void remove_empty_registration() {
  [[maybe_unused]] static const bool removed = [] {
    const std::string file = "/dev/shm/__KMP_REGISTERED_LIB_" + std::to_string(getpid()) + "_" +
                             std::to_string(getuid());
    struct stat found;
    const bool empty = lstat(file.c_str(), &found) == 0 && S_ISREG(found.st_mode) &&
                       found.st_uid == geteuid() && found.st_size == 0;
    return empty && unlink(file.c_str()) == 0;
  }();
}

// Helpers in use by all runs, and the most that a single run ever requested.
std::atomic<int> helpers_in_use{0}, helpers_wanted{0};

// Reserves up to `count` helpers for one run. The total never exceeds the most that a single run
// has requested.
class HelperBudget {
 public:
  explicit HelperBudget(int count) {
    int most = helpers_wanted.load();
    while (most < count && !helpers_wanted.compare_exchange_weak(most, count)) continue;
    most = std::max(most, count);
    int used = helpers_in_use.load();
    do {
      count_ = std::clamp(most - used, 0, count);
    } while (!helpers_in_use.compare_exchange_weak(used, used + count_));
  }
  ~HelperBudget() { helpers_in_use.fetch_sub(count_); }
  HelperBudget(const HelperBudget&) = delete;
  HelperBudget& operator=(const HelperBudget&) = delete;

  int count() const { return count_; }

 private:
  int count_;
};

// Sets how long the runtime's threads spin before they sleep, for the lifetime of the object.
// Applies to the calling thread and its team.
class BlockTime {
 public:
  BlockTime() : before_(is_ours() ? kmp_get_blocktime() : kOurs) {
    if (before_ != kOurs) kmp_set_blocktime(kOurs);
  }
  ~BlockTime() {
    if (before_ != kOurs) kmp_set_blocktime(before_);
  }
  BlockTime(const BlockTime&) = delete;
  BlockTime& operator=(const BlockTime&) = delete;

 private:
  static constexpr int kOurs = 1;  // ms; 0 would turn spinning off
  // Environment variables of the user take precedence.
  static bool is_ours() {
    static const bool ours = openmp_is_tunable() && std::getenv("KMP_BLOCKTIME") == nullptr &&
                             std::getenv("OMP_WAIT_POLICY") == nullptr;
    return ours;
  }
  int before_;
};

// Returns whether the system can start `count` more threads, with stacks as large as the runtime's.
bool has_room_for(int count) {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  bool room = kmp_get_stacksize_s == nullptr ||
              pthread_attr_setstacksize(&attributes, kmp_get_stacksize_s()) == 0;
  std::vector<pthread_t> threads;
  threads.reserve(static_cast<size_t>(count));
  pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;  // holds all of them until the last exists
  pthread_mutex_lock(&gate);
  const auto pass = [](void* g) -> void* {
    pthread_mutex_lock(static_cast<pthread_mutex_t*>(g));
    pthread_mutex_unlock(static_cast<pthread_mutex_t*>(g));
    return nullptr;
  };
  for (pthread_t thread{}; room && static_cast<int>(threads.size()) < count;) {
    room = pthread_create(&thread, &attributes, pass, &gate) == 0;
    if (room) threads.push_back(thread);
  }
  pthread_mutex_unlock(&gate);
  for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  return room;
}

// Returns whether the calling thread may use that many helpers. The runtime starts threads when a
// caller first wants them, and ends the process if the system refuses one.
bool can_start(int helpers) {
  thread_local int had = 0;
  if (helpers <= had) return true;
  if (!has_room_for(helpers - had)) return false;
  had = helpers;
  return true;
}

// Returns whether the runtime works in this process. GNU's would wait without end for threads lost
// by a fork.
bool survived_fork() {
  static const pid_t process = getpid();
  return openmp_is_tunable() || process == getpid();
}

// Stays a function: clang calls the runtime at the beginning of the one that has a parallel region.
[[gnu::noinline]] void run_members(WorkQueue& queue, const std::function<void(Team)>& work,
                                   HelperBalance::Run& seen) {
#pragma omp parallel num_threads(seen.helpers + 1) default(none) shared(queue, work, seen)
  {
    const int rank = omp_get_thread_num();
    const TeamProgress tally = run_member(rank, omp_get_num_threads(), queue, work);
    if (rank == 0) {
      seen.tally = tally;
      seen.done = HelperBalance::Clock::now();
    }
  }
}

bool is_thread_count(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  int n = 0;
  for (const char c : text) {
    if (c < '0' || c > '9' || n > kMaxThreads) return false;
    n = n * 10 + (c - '0');
  }
  return n >= 1 && n <= kMaxThreads;
}

}  // namespace

bool openmp_built() { return true; }
bool openmp_is_tunable() { return kmp_set_blocktime != nullptr && kmp_get_blocktime != nullptr; }

std::string openmp_library() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&omp_get_max_threads), &info) == 0) return "";
  return std::filesystem::path(info.dli_fname).filename();
}

void check_openmp_environment() {
  const char* const value = std::getenv("OMP_NUM_THREADS");
  if (value == nullptr) return;
  std::string_view rest = value;  // one number per level of nesting
  for (size_t comma = 0; comma != std::string_view::npos; rest.remove_prefix(comma + 1)) {
    comma = rest.find(',');
    if (!is_thread_count(rest.substr(0, comma))) {
      throw Error(ErrorKind::argument, "", "OMP_NUM_THREADS", "1 .. " + std::to_string(kMaxThreads),
                  *value == '\0' ? "nothing" : value);
    }
    if (comma == std::string_view::npos) return;
  }
}

int openmp_threads() {
  remove_empty_registration();
  return std::clamp(omp_get_max_threads(), 1, kMaxThreads);
}

bool run_openmp(int size, bool operations, const std::function<void(Team)>& work) {
  if (!survived_fork()) return false;
  remove_empty_registration();
  thread_local HelperBalance worth;
  if (operations && !worth.are_worth_it(HelperBalance::Clock::now)) return run_alone(work), true;
  const HelperBudget helpers(size - 1);
  if (helpers.count() == 0) return run_alone(work), true;
  if (!can_start(helpers.count())) return false;
  const BlockTime ours;
  WorkQueue queue;
  HelperBalance::Run seen{.helpers = helpers.count(), .start = HelperBalance::Clock::now()};
  run_members(queue, work, seen);
  if (operations) worth.note(seen, HelperBalance::Clock::now());
  return true;
}

#endif

}  // namespace stet
