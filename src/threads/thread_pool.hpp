// Threads of our own that help callers with their runs: one pool for the process.
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
  enum class Wait { for_all, for_comers };  // for the helpers that have come when the work is done

  // The pool of this process: a process that was forked has none of its parent's threads and makes
  // its own. When the process ends in good order, so do the threads.
  static ThreadPool& of_process();

  // work(Team) on this thread, rank 0, and on up to size - 1 helpers: those that no other run has.
  // The pool grows to size - 1, or to as many as the system allows.
  void run(int size, Wait wait, const std::function<void(Team)>& work);

 private:
  struct Run;
  struct Helper;

  static pid_t current_process();
  explicit ThreadPool(const ThreadPool* of_parent);
  ~ThreadPool();  // of one that was never used: a thread may be late at the end of the process

  Helper* claim(int count, Run& run);
  void grow(int count);
  void end();
  static void serve(Helper& me);

  const pid_t process_ = current_process();
  [[maybe_unused]] const ThreadPool* const of_parent_;  // kept reachable, nothing else
  std::mutex mutex_;                                    // of all below
  std::vector<std::unique_ptr<Helper>> helpers_;
  bool ended_ = false;
};

}  // namespace stet
