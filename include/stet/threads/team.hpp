// The threads that run one forward pass together. Every function that takes a Team is called by all
// its threads at once, in the same order, and returns when the work is done: by whichever threads
// came first. A thread that the system has put aside holds the others up only if it was in the
// middle of a piece; when it comes back it finds its operations done and catches up. So nothing may
// be read or written outside of the pieces, but what no operation of the pass changes.
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

struct Range {
  size_t begin, end;
  size_t size() const { return end - begin; }
};

// Part `i` of 0 .. n-1 cut into `parts`: contiguous, sizes differ by one at most.
STET_API Range part_of(size_t n, size_t parts, size_t i);

// A number that threads wait to see changed. A waiter spins for some tens of microseconds, because
// what a team waits for is mostly nearer than that, and then sleeps, so that a busy machine loses
// no time to it. A change costs a system call only while somebody sleeps.
class STET_API EventCount {
 public:
  uint32_t load() const { return value_.load(std::memory_order_acquire); }
  // Every change that a waiter is to see is followed by wake(). All of these are sequentially
  // consistent, as is going to sleep: either the sleeper sees the value, or wake() sees the
  // sleeper.
  void store(uint32_t value) { value_.store(value); }
  bool replace(uint32_t expected, uint32_t value) {
    return value_.compare_exchange_strong(expected, value);
  }
  void wake() {
    if (sleepers_.load() > 0) value_.notify_all();
  }
  // Returns the value, once it is not `seen`.
  uint32_t wait_while(uint32_t seen);

 private:
  std::atomic<uint32_t> value_{0}, sleepers_{0};
};

// The operations of one run, one after the other, each of so many pieces.
class STET_API WorkQueue {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Returns the next piece of operation `op`, which has `n`; kNone when none is left, and then the
  // operation is done.
  uint32_t take(uint32_t op, uint32_t n);
  // Says that a piece was done. Returns whether it was the last of its operation.
  bool finish(uint32_t op, uint32_t n);

 private:
  alignas(64) std::atomic<uint64_t> next_{0};  // operation << 32 | piece
  // Of those who wait for the operation to end. As in EventCount, this and next_ are sequentially
  // consistent where one ends it and where one goes to sleep.
  std::atomic<uint32_t> sleepers_{0};
  alignas(64) std::atomic<uint32_t> done_{0};  // pieces of it
};

// How far one member of a team has come.
struct Tally {
  uint32_t operations = 0;
  uint64_t pieces = 0, done = 0;  // of those operations; how many of them this member did
};

class Interruption;  // interrupt.hpp
// Whether the run is to end, after asking where it is time to and this is the thread to ask.
STET_API bool interrupted(Interruption& interruption);

struct STET_API Team {
  int rank = 0;  // this thread, 0 .. size-1
  int size = 1;
  WorkQueue* queue = nullptr;            // null for a team of one
  Tally* tally = nullptr;                // this thread's; null for a team of one
  Interruption* interruption = nullptr;  // null: nobody asks for the run to end

  // f(i) for every i below n, each by one thread. Returns when all are done.
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
  // f(Range) for 0 .. n-1 in as many contiguous parts as keep all threads busy to the end, none
  // (but of a small n) below `least`.
  template <class F>
  void each_range(size_t n, size_t least, F f) const {
    const size_t parts = parts_of(n, least);
    each(parts, [&](size_t i) { f(part_of(n, parts, i)); });
  }
  size_t parts_of(size_t n, size_t least) const;
  // Once a run is to end, what is left of its pieces does nothing.
  template <class F>
  void piece(F& f, size_t i) const {
    if (interruption == nullptr || !interrupted(*interruption)) f(i);
  }
  // This thread's part of 0 .. n-1, for work that is not in operations.
  Range share(size_t n) const {
    return part_of(n, static_cast<size_t>(size), static_cast<size_t>(rank));
  }
};

// Where the threads beside the calling one come from. Bits cannot tell.
enum class TeamBackend : uint8_t {
  automatic,  // what set_team_backend() chose
  openmp,     // the OpenMP runtime that this process has: its pool, its variables, its placement
  own,        // threads of stet's own: one pool for the process
};
// "openmp" or "own"; "automatic".
STET_API const char* team_backend_name(TeamBackend backend);
STET_API std::optional<TeamBackend> team_backend_of(std::string_view name);  // its inverse
STET_API std::vector<std::string> team_backends();  // the names of those that this build has
// Throws an unsupported Error where this build lacks the backend, and an argument Error where
// OMP_NUM_THREADS says what the OpenMP runtime would end the process for.
STET_API void check_team_backend(TeamBackend backend);
// What `automatic` is from now on, in this process; `automatic` itself stands for what it was at
// the start: OpenMP by LLVM's runtime, otherwise threads of our own. Returns the one before. Throws
// as check_team_backend().
STET_API TeamBackend set_team_backend(TeamBackend backend);
// What runs teams now: "own threads", "OpenMP (libomp.so.5)", "an executor of the program's own".
STET_API std::string team_runtime(TeamBackend backend = TeamBackend::automatic);

// Threads of an embedding program, in place of both backends.
class Executor {
 public:
  virtual ~Executor() = default;
  // Calls member(0), ..., member(size - 1), each once, and returns when all calls have. The order
  // is free, and so is how many run at once, and on which threads: even all on the calling one.
  // A member may wait for a piece that another has begun, for none that nobody has. It does not
  // throw, and neither may this.
  virtual void run(int size, const std::function<void(int rank)>& member) = 0;
};
// Every run of this process that names no executor takes this one, from now on; null: a backend
// again. It must live until it is replaced and the runs that began before are over. Several threads
// may call its run() at once. Returns the one before.
STET_API Executor* set_executor(Executor* executor);

// Who runs a team, and how large it is.
struct TeamOptions {
  TeamOptions(int n, TeamBackend b = TeamBackend::automatic, Executor* e = nullptr)
      : threads(n), backend(b), executor(e) {}

  int threads;  // the calling one included
  TeamBackend backend;
  Executor* executor;  // not null: in place of any backend
};

// Runs `work` on several threads, the calling one included, under the contract's floating-point
// environment. An exception in `work` is not allowed: allocate and check before.
//
// The team is smaller than asked for where the system refuses threads, where `work` itself runs a
// team (then it is of one), and while other threads have runs of their own: all runs of a process
// together have no more helpers than the largest team that was ever asked for, and who comes when
// none is free runs alone at once, instead of waiting. Helpers are made when first needed and sleep
// between runs. Those of our own belong to all callers; an OpenMP runtime keeps those that helped a
// calling thread for that thread until it ends.
//
// An OpenMP team obeys OMP_THREAD_LIMIT, OMP_DYNAMIC, OMP_PROC_BIND and OMP_PLACES. For as long as
// a run takes, LLVM's runtime is told to let threads sleep early (kmp_set_blocktime), on the
// calling thread and its team alone, unless KMP_BLOCKTIME or OMP_WAIT_POLICY is set.
STET_API void run_team(const TeamOptions& options, const std::function<void(Team)>& work);

// The same, for work that is nothing but operations (Team::each): threads that have not come by the
// time it is done are not waited for, where the backend lets one go on without them (our own does).
// On a busy machine a pass of a small model is done before the system lets them.
STET_API void run_operations(const TeamOptions& options, const std::function<void(Team)>& work);

// The same, which ends early, with its work half done, where the calling thread's interrupt says
// so: then it throws Interrupted (interrupt.hpp).
STET_API void run_interruptible(const TeamOptions& options, const std::function<void(Team)>& work);

// Runs work(i) for every i below n, shared out among the threads. What work throws is rethrown
// here, once all threads have stopped: that of the lowest i.
STET_API void run_each(const TeamOptions& options, size_t n,
                       const std::function<void(size_t)>& work);

// Threads to use when the caller does not say: the processors this process may run on; what
// OMP_NUM_THREADS or omp_set_num_threads() says where `automatic` is OpenMP. Throws an argument
// Error for an OMP_NUM_THREADS that is no number of threads.
STET_API int default_threads();
constexpr int kMostThreads = 8192;  // as many processors as Linux can have

}  // namespace stet
