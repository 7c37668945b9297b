// The threads that run one forward pass together. Every function that takes a Team is called by all its threads at once, in
// the same order, and returns when the work is done: by whichever threads came first. A thread that the system has put aside
// holds the others up only if it was in the middle of a piece; when it comes back it finds its operations done and catches
// up. So nothing may be read or written outside of the pieces, but what no operation of the pass changes.
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

// The work of a team: operations one after the other, each of so many pieces.
class Work {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // The next piece of operation `op`, which has `n`; kNone when none is left, and then the operation is done.
  uint32_t take(uint32_t op, uint32_t n);
  // A piece was done. Returns whether it was the last of its operation.
  bool finish(uint32_t op, uint32_t n);

 private:
  void wait(uint32_t op);

  alignas(64) std::atomic<uint64_t> next_{0};  // operation << 32 | piece
  alignas(64) std::atomic<uint32_t> done_{0};  // pieces of it
  alignas(64) std::atomic<uint32_t> op_{0};    // what sleepers watch: the operation, and nothing of its pieces
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
  // f(Range) for 0 .. n-1 in as many contiguous parts as keep all threads busy to the end, none (but of a small n) below
  // `least`.
  template <class F>
  void each_range(size_t n, size_t least, F f) const {
    const size_t parts = parts_of(n, least);
    each(parts, [&](size_t i) { f(part_of(n, parts, i)); });
  }
  size_t parts_of(size_t n, size_t least) const;
  // This thread's part of 0 .. n-1, for work that is not in operations.
  Range share(size_t n) const { return part_of(n, static_cast<size_t>(size), static_cast<size_t>(rank)); }
};

// Runs `work` on `threads` threads, this one included, under the contract's floating-point environment. An
// exception in `work` is not allowed: allocate and check before.
void run_team(int threads, const std::function<void(Team)>& work);

// Runs work(i) for every i below n, shared out among `threads` threads. What work throws is rethrown here, once all threads
// have stopped: that of the lowest i.
void run_each(int threads, size_t n, const std::function<void(size_t)>& work);

// Threads to use when the caller does not say: the processors this process may run on.
int default_threads();

}  // namespace stet
