// The process's pool of helper threads, which callers share for their runs.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "stet/threads/team.hpp"

namespace stet {

class ThreadPool {
 public:
  enum class Wait { for_all, for_started };  // for_started: for helpers that have started

  // Returns the pool of this process. A forked process makes a pool of its own, since it has none
  // of its parent's threads. The threads end with the process if it exits normally.
  static ThreadPool& of_process();

  // Calls work(Team) on this thread as rank 0 and on up to size - 1 idle helpers. The pool grows to
  // size - 1 helpers, or as many as the system allows.
  void run(int size, Wait wait, const std::function<void(Team)>& work);

 private:
  struct Run;
  struct Helper;

  static pid_t current_process();
  explicit ThreadPool(const ThreadPool* of_parent);
  ~ThreadPool();  // for an unused pool only, since threads may end late

  Helper* claim(int count, Run& run);
  void grow(int count);
  void end();
  static void serve(Helper& me);

  const pid_t process_ = current_process();
  std::mutex mutex_;  // guards the members below
  std::vector<std::unique_ptr<Helper>> helpers_;
  bool ended_ = false;

 protected:                            // compilers warn of private members that are never read
  const ThreadPool* const of_parent_;  // only keeps it reachable
};

}  // namespace stet
