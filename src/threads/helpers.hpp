// The threads that help one calling thread with its runs.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "stet/threads/team.hpp"

namespace stet {

// The processors of an affinity mask, which get_affinity(bytes, set) writes, or refuses with EINVAL
// while it has no room.
int count_processors(const std::function<int(size_t, cpu_set_t*)>& get_affinity);

// Threads of our own instead of OpenMP's: its runtime makes threads spin for milliseconds at the
// end of a parallel region and between two of them, and lets none end before all have come. Beside
// other programs that costs a small model most of its speed: every pass waits for threads that the
// system has put aside.
class Helpers {
 public:
  enum class Wait { for_all, for_comers };

  Helpers() = default;
  ~Helpers();
  Helpers(const Helpers&) = delete;
  Helpers& operator=(const Helpers&) = delete;

  // work(Team) on this thread, rank 0, and on size - 1 helpers, or as many as could be made.
  void run(int size, Wait wait, const std::function<void(Team)>& work);

 private:
  void forget_those_of_the_parent();
  int grow(int count);  // to `count` helpers, or as many as could be made: how many there are
  void open(int size, const std::function<void(Team)>& work);
  void serve(int rank);
  int enter(uint32_t run, int rank);

  std::vector<std::thread> threads_;
  pid_t process_ = 0;  // whose threads they are
  Work operations_;    // of all runs, one after the other
  // The run that may be entered: its number << 32 | size << 16 | helpers that have entered; 0 for
  // none. What it is, helpers read once they are in; the caller changes it when they have left.
  alignas(64) std::atomic<uint64_t> gate_{0};
  Watched run_;  // the number of the latest run
  const std::function<void(Team)>* work_ = nullptr;
  uint32_t first_op_ = 0;
  std::atomic<bool> ending_{false};
  alignas(64) Watched left_;  // helpers that entered and are through
};

}  // namespace stet
