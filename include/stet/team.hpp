// The threads that run one forward pass together. Every function that takes a Team is called by all its
// threads at once, does its share, and returns when all are done.
#pragma once

#include <cstddef>
#include <functional>

namespace stet {

struct Range {
  size_t begin, end;
};

struct Team {
  int rank = 0;  // this thread, 0 .. size-1
  int size = 1;

  void barrier() const;
  // This thread's part of 0 .. n-1: contiguous, sizes differ by one at most.
  Range share(size_t n) const;
};

// Runs `work` on `threads` threads, this one included, under the contract's floating-point environment. An
// exception in `work` is not allowed: allocate and check before.
void run_team(int threads, const std::function<void(Team)>& work);

// Threads to use when the caller does not say: the processors this process may run on.
int default_threads();

}  // namespace stet
