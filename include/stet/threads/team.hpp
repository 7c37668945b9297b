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

namespace stet {

struct Range {
  size_t begin, end;
  size_t size() const { return end - begin; }
};

// Part `i` of 0 .. n-1 cut into `parts`: contiguous, sizes differ by one at most.
Range part_of(size_t n, size_t parts, size_t i);

// A number that threads wait to see changed. A waiter spins for some tens of microseconds, because
// what a team waits for is mostly nearer than that, and then sleeps, so that a busy machine loses
// no time to it. A change costs a system call only while somebody sleeps.
class Watched {
 public:
  uint32_t load() const { return value_.load(std::memory_order_acquire); }
  // Every change is to be followed by wake(). Both are sequentially consistent, as is going to
  // sleep: either the sleeper sees the value, or wake() sees the sleeper.
  void set(uint32_t value) { value_.store(value); }
  void add_one() { value_.fetch_add(1); }
  void wake() {
    if (sleepers_.load() > 0) value_.notify_all();
  }
  // The value, once it is not `seen`.
  uint32_t changed_from(uint32_t seen);

 private:
  std::atomic<uint32_t> value_{0}, sleepers_{0};
};

// The work of a team: operations one after the other, each of so many pieces.
class Work {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // The next piece of operation `op`, which has `n`; kNone when none is left, and then the
  // operation is done.
  uint32_t take(uint32_t op, uint32_t n);
  // A piece was done. Returns whether it was the last of its operation.
  bool finish(uint32_t op, uint32_t n);

 private:
  alignas(64) std::atomic<uint64_t> next_{0};  // operation << 32 | piece
  Watched op_;                                 // the operation alone, never behind next_
  alignas(64) std::atomic<uint32_t> done_{0};  // pieces of it
};

struct Team {
  int rank = 0;  // this thread, 0 .. size-1
  int size = 1;
  Work* work = nullptr;    // null for a team of one
  uint32_t* op = nullptr;  // this thread's operations so far

  // f(i) for every i below n, each by one thread. Returns when all are done.
  template <class F>
  void each(size_t n, F f) const {
    if (work == nullptr || n == 0) {
      for (size_t i = 0; i < n; ++i) f(i);
      return;
    }
    const uint32_t mine = (*op)++, count = static_cast<uint32_t>(n);
    for (uint32_t i; (i = work->take(mine, count)) != Work::kNone;) {
      f(i);
      if (work->finish(mine, count)) return;
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
  // This thread's part of 0 .. n-1, for work that is not in operations.
  Range share(size_t n) const {
    return part_of(n, static_cast<size_t>(size), static_cast<size_t>(rank));
  }
};

// Runs `work` on `threads` threads, this one included, under the contract's floating-point
// environment. An exception in `work` is not allowed: allocate and check before. The other threads
// belong to the calling thread: made when first needed, kept asleep between runs, ended with it.
// Where the system refuses them, or `work` itself runs a team, the team is smaller.
void run_team(int threads, const std::function<void(Team)>& work);

// The same, for work that is nothing but operations (Team::each): threads that have not come by the
// time it is done are not waited for. On a busy machine a pass of a small model is done before the
// system lets them.
void run_operations(int threads, const std::function<void(Team)>& work);

// Runs work(i) for every i below n, shared out among `threads` threads. What work throws is
// rethrown here, once all threads have stopped: that of the lowest i.
void run_each(int threads, size_t n, const std::function<void(size_t)>& work);

// Threads to use when the caller does not say: the processors this process may run on.
int default_threads();
constexpr int kMostThreads = 8192;  // as many processors as Linux can have

}  // namespace stet
