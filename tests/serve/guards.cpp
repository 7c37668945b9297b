// With UNGUARDED defined, this program touches a guarded member without the mutex
// (tools/serve/mutex.hpp), and clang must refuse it. Without it clang must accept the program.
#include "tools/serve/mutex.hpp"

namespace stet::serve {

class Counter {
 public:
  void add() {
    const MutexLock lock(mutex_);
    add_held();
  }
  int count() const {
#ifndef UNGUARDED
    const MutexLock lock(mutex_);
#endif
    return count_;
  }

 private:
  void add_held() STET_REQUIRES(mutex_) { ++count_; }

  mutable Mutex mutex_;
  int count_ STET_GUARDED_BY(mutex_) = 0;
};

}  // namespace stet::serve

int main() {
  stet::serve::Counter counter;
  counter.add();
  return counter.count() - 1;
}
