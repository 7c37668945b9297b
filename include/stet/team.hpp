// The threads that run one forward pass together. Every function that takes a Team is called by all its
// threads at once, does its share, and returns when all are done.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>

namespace stet {

struct Range {
  size_t begin, end;
};

// Where a team waits for its last member: a short spin, because shares are even, then a sleep, so that a busy
// machine loses no time to waiting threads.
class Barrier {
 public:
  void wait(int members);

 private:
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> round_{0};
};

struct Team {
  int rank = 0;  // this thread, 0 .. size-1
  int size = 1;
  Barrier* shared = nullptr;  // null for a team of one

  void barrier() const {
    if (shared != nullptr) shared->wait(size);
  }
  // This thread's part of 0 .. n-1: contiguous, sizes differ by one at most.
  Range share(size_t n) const;
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
