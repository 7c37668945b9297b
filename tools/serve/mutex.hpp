// A mutex whose use clang checks (-Wthread-safety, an error by tools/CMakeLists.txt). Code that
// uses a GUARDED_BY member without its mutex does not compile. For other compilers it is a
// std::mutex.
#pragma once

#include <mutex>

#if defined(__clang__)
#define STET_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define STET_THREAD_SAFETY(attribute)
#endif

// Marks a member that only a holder of the mutex may use.
#define STET_GUARDED_BY(mutex) STET_THREAD_SAFETY(guarded_by(mutex))
// Mark a function whose caller must hold the mutex, and one whose caller must not.
#define STET_REQUIRES(mutex) STET_THREAD_SAFETY(requires_capability(mutex))
#define STET_EXCLUDES(mutex) STET_THREAD_SAFETY(locks_excluded(mutex))

namespace stet::serve {

class STET_THREAD_SAFETY(capability("mutex")) Mutex {
 public:
  void lock() STET_THREAD_SAFETY(acquire_capability()) { mutex_.lock(); }
  void unlock() STET_THREAD_SAFETY(release_capability()) { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

// Holds a Mutex while it lives, like std::lock_guard, which clang does not check.
class STET_THREAD_SAFETY(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) STET_THREAD_SAFETY(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() STET_THREAD_SAFETY(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace stet::serve
