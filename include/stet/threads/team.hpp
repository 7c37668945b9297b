// The threads that run a forward pass together. All threads of a team call every function that
// takes a Team, in the same order. The function returns when its work is done, even if a slow
// thread has done none of it.
//
// A thread that the system has suspended delays the others only if it was in the middle of a piece.
// When it resumes, it finds its operations done and catches up. Outside the pieces, code may
// therefore access only data that no operation of the pass changes.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stet/api.h"

namespace stet {

// Numbers begin .. end-1.
struct Range {
  size_t begin, end;
  size_t size() const { return end - begin; }
};

// Returns part `i` of 0 .. n-1 divided into `parts`: contiguous, with sizes that differ by at most
// one.
STET_API Range part_of(size_t n, size_t parts, size_t i);

// A number whose changes threads can wait for. A waiter first spins for some tens of microseconds,
// because most waits of a team are shorter. Then it sleeps, which saves time on a busy machine. A
// change needs a system call only while a thread sleeps.
class STET_API EventCount {
 public:
  uint32_t load() const { return value_.load(std::memory_order_acquire); }
  // Call wake() after every change that waiters should see. These operations and going to sleep are
  // sequentially consistent: either the sleeper sees the value, or wake() sees the sleeper.
  void store(uint32_t value) { value_.store(value); }
  bool replace(uint32_t expected, uint32_t value) {
    return value_.compare_exchange_strong(expected, value);
  }
  void wake() {
    if (sleepers_.load() > 0) value_.notify_all();
  }
  // Waits until the value differs from `seen`, and returns it.
  uint32_t wait_while(uint32_t seen);

 private:
  std::atomic<uint32_t> value_{0}, sleepers_{0};
};

// The operations of one run in order, each divided into pieces.
class STET_API WorkQueue {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Returns the next piece of operation `op`, which has `n` pieces. Returns kNone if none is left
  // and the operation is done.
  uint32_t take(uint32_t op, uint32_t n);
  // Reports that a piece was done. Returns true if it was the operation's last.
  bool finish(uint32_t op, uint32_t n);

 private:
  alignas(64) std::atomic<uint64_t> next_{0};  // operation << 32 | piece
  // Threads that wait for the operation to end. As in EventCount, this and next_ are sequentially
  // consistent between ending an operation and going to sleep.
  std::atomic<uint32_t> sleepers_{0};
  alignas(64) std::atomic<uint32_t> done_{0};  // pieces done
};

// The progress of one member of a team.
struct TeamProgress {
  uint32_t operations = 0;
  uint64_t pieces = 0, done = 0;  // all pieces of those operations, and those done by this member
};

class Interruption;  // interrupt.hpp
// Returns true if the run should end. Calls the interrupt's callback if enough time has passed
// since the last call and this thread may call it.
STET_API bool interrupted(Interruption& interruption);

// One thread's view of a team.
struct STET_API Team {
  int rank = 0;  // this thread, 0 .. size-1
  int size = 1;
  WorkQueue* queue = nullptr;            // null for a team of one
  TeamProgress* tally = nullptr;         // this thread's; null for a team of one
  Interruption* interruption = nullptr;  // null: no interrupt

  // Calls f(i) for every i below n, each on one thread. Returns when all are done.
  template <class F>
  void each(size_t n, F f) const {
    if (queue == nullptr || n == 0) {
      for (size_t i = 0; i < n; ++i) piece(f, i);
      return;
    }
    const uint32_t op = tally->operations++, count = static_cast<uint32_t>(n);
    tally->pieces += count;
    for (uint32_t i; (i = queue->take(op, count)) != WorkQueue::kNone;) {
      piece(f, i);
      ++tally->done;
      if (queue->finish(op, count)) return;
    }
  }
  // Calls f(Range) for parts of 0 .. n-1: as many as keep all threads busy to the end. No part is
  // smaller than `least` unless n is.
  template <class F>
  void each_range(size_t n, size_t least, F f) const {
    const size_t parts = parts_of(n, least);
    each(parts, [&](size_t i) { f(part_of(n, parts, i)); });
  }
  size_t parts_of(size_t n, size_t least) const;
  // Runs a piece. Once a run has been interrupted, its remaining pieces do nothing.
  template <class F>
  void piece(F& f, size_t i) const {
    if (interruption == nullptr || !interrupted(*interruption)) f(i);
  }
  // Returns this thread's part of 0 .. n-1, for work outside operations.
  Range share(size_t n) const {
    return part_of(n, static_cast<size_t>(size), static_cast<size_t>(rank));
  }
};

// The source of a team's additional threads. The choice does not affect results.
enum class TeamBackend : uint8_t {
  automatic,  // the choice of set_team_backend()
  openmp,     // the process's OpenMP runtime, with its pool, variables and placement
  own,        // stet's own threads, one pool per process
};
// Returns "openmp", "own" or "automatic".
STET_API const char* team_backend_name(TeamBackend backend);
// inverse of team_backend_name()
STET_API std::optional<TeamBackend> team_backend_of(std::string_view name);
STET_API std::vector<std::string> team_backends();  // names of the backends in this build
// Throws an unsupported Error if this build lacks the backend. Throws an argument Error for a value
// of OMP_NUM_THREADS that would make the OpenMP runtime end the process.
STET_API void check_team_backend(TeamBackend backend);
// Sets the meaning of `automatic` for this process and returns the previous one. Passing
// `automatic` restores the default: OpenMP by LLVM's runtime, otherwise stet's own threads. Throws
// what check_team_backend() throws.
STET_API TeamBackend set_team_backend(TeamBackend backend);
// Returns what runs teams: "own threads", "OpenMP (libomp.so.5)", "an executor of the program's
// own".
STET_API std::string team_runtime(TeamBackend backend = TeamBackend::automatic);

// Threads of an embedding program, used instead of both backends.
class Executor {
 public:
  virtual ~Executor() = default;
  // Calls member(0), ..., member(size - 1), each once, and returns when all calls have returned.
  // They may run in any order and on any threads, even all on the calling one. A member may wait
  // for a piece that another has started, but never for one that none has. Neither may throw. The
  // thread that called run() then runs the members that it has left out.
  virtual void run(int size, const std::function<void(int rank)>& member) = 0;
};
// Sets the executor for all runs of this process that name none, and returns the previous one; null
// restores the backends. It must live until it is replaced and earlier runs are over. Several
// threads may call its run() at once.
STET_API Executor* set_executor(Executor* executor);

// The size of a team and the source of its threads.
struct TeamOptions {
  TeamOptions(int n, TeamBackend b = TeamBackend::automatic, Executor* e = nullptr)
      : threads(n), backend(b), executor(e) {}

  int threads;  // including the calling one
  TeamBackend backend;
  Executor* executor;  // not null: used instead of a backend
};

// Runs `work` on several threads, including the calling one, under the contract's floating-point
// environment. `work` must not throw: allocate and check before.
//
// The team is smaller than requested if the system refuses threads or other threads have runs of
// their own. If `work` itself runs a team, that team has one thread. All runs of a process together
// use at most as many helpers as the largest team requested so far. A caller that finds no free
// helper starts at once, on its own thread only.
//
// Helpers are created when first needed and sleep between runs. stet's own serve all callers. An
// OpenMP runtime keeps the helpers of a calling thread for that thread until it ends.
//
// An OpenMP team obeys OMP_THREAD_LIMIT, OMP_DYNAMIC, OMP_PROC_BIND and OMP_PLACES. During a run,
// stet makes LLVM's runtime let threads of this team sleep early (kmp_set_blocktime), unless
// KMP_BLOCKTIME or OMP_WAIT_POLICY is set.
STET_API void run_team(const TeamOptions& options, const std::function<void(Team)>& work);

// Like run_team(), for work that consists only of operations (Team::each). Does not wait for
// threads that have not started by the time it is done, if the backend allows that (stet's own
// does). On a busy machine, a pass of a small model ends before the system lets them start.
STET_API void run_operations(const TeamOptions& options, const std::function<void(Team)>& work);

// Like run_operations(), but the calling thread's interrupt can end it early, with its work half
// done. Throws Interrupted then (interrupt.hpp).
STET_API void run_interruptible(const TeamOptions& options, const std::function<void(Team)>& work);

// Runs work(i) for every i below n, shared among the threads. If calls throw, rethrows the
// exception of the lowest i after all threads have stopped.
STET_API void run_each(const TeamOptions& options, size_t n,
                       const std::function<void(size_t)>& work);

// Returns the number of threads to use by default: the processors that this process may use. If
// `automatic` is OpenMP, returns what OMP_NUM_THREADS or omp_set_num_threads() says. Throws an
// argument Error for an invalid OMP_NUM_THREADS.
STET_API int default_threads();
// Returns how many of `threads` threads a pass should use: as many as make it faster, and no more
// than this process has processors. Each of its operations reads `bytes` bytes of weights, or
// multiplies for as long as that takes. Synchronizing further threads would take longer than they
// save.
STET_API int threads_that_pay(int threads, uint64_t bytes);
// Lets every pass use all threads that it is given, as tests do. Returns the previous setting.
STET_API bool use_all_threads(bool all);
// Describes for people how this machine's processors differ: "2 NUMA nodes", "8 fast and 16 slow
// cores", or both. Returns "" if all are alike. `root` is where the system describes devices.
STET_API std::string processor_kinds(const std::string& root = "/sys/devices");
constexpr int kMaxThreads = 8192;  // the most processors that Linux supports

}  // namespace stet
