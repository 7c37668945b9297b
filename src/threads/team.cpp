#include "stet/threads/team.hpp"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <memory>
#include <mutex>

#include "src/threads/helpers.hpp"

namespace stet {
namespace {

constexpr int kSpins = 2000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

Helpers& helpers() {
  thread_local Helpers mine;
  return mine;
}

}  // namespace

uint32_t Watched::changed_from(uint32_t seen) {
  for (int i = 0; i < kSpins; ++i) {
    if (const uint32_t now = load(); now != seen) return now;
    pause();
  }
  sleepers_.fetch_add(1);
  value_.wait(seen);
  sleepers_.fetch_sub(1);
  return load();
}

Range part_of(size_t n, size_t parts, size_t i) {
  const size_t each = n / parts, more = n % parts, begin = i * each + std::min(i, more);
  return {begin, begin + each + (i < more ? 1 : 0)};
}

uint32_t Work::take(uint32_t op, uint32_t n) {
  uint64_t next = next_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(next >> 32) == op) {
    const uint32_t piece = static_cast<uint32_t>(next);
    if (piece == n) {
      op_.changed_from(op);
      next = next_.load(std::memory_order_acquire);
    } else if (next_.compare_exchange_weak(next, next + 1, std::memory_order_acq_rel)) {
      return piece;
    }
  }
  return kNone;
}

bool Work::finish(uint32_t op, uint32_t n) {
  if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 != n) return false;
  done_.store(0, std::memory_order_relaxed);
  op_.set(op + 1);
  next_.store(static_cast<uint64_t>(op + 1) << 32, std::memory_order_release);
  op_.wake();
  return true;
}

size_t Team::parts_of(size_t n, size_t least) const {
  if (work == nullptr) return 1;
  constexpr size_t kEach =
      8;  // parts for each thread: what the slowest is behind by is a part at most
  const size_t threads = static_cast<size_t>(size);
  if (n < threads * least) return std::max<size_t>(1, std::min(n, threads));
  return std::min(threads * kEach, n / least / threads * threads);
}

void run_team(int threads, const std::function<void(Team)>& work) {
  helpers().run(threads, Helpers::Wait::for_all, work);
}

void run_operations(int threads, const std::function<void(Team)>& work) {
  helpers().run(threads, Helpers::Wait::for_comers, work);
}

void run_each(int threads, size_t n, const std::function<void(size_t)>& work) {
  std::mutex mutex;
  size_t failed = n;
  std::exception_ptr failure;
  run_operations(threads, [&](Team team) {
    team.each(n, [&](size_t i) {
      {
        const std::lock_guard lock(mutex);
        if (i > failed) return;
      }
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < failed) failure = std::current_exception();
        failed = std::min(failed, i);
      }
    });
  });
  if (failure) std::rethrow_exception(failure);
}

int count_processors(const std::function<int(size_t, cpu_set_t*)>& get_affinity) {
  for (size_t most = 1024; most <= size_t{1} << 20; most *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(most),
                                                               [](cpu_set_t* s) { CPU_FREE(s); });
    const size_t bytes = CPU_ALLOC_SIZE(most);
    if (get_affinity(bytes, set.get()) == 0)
      return std::clamp(CPU_COUNT_S(bytes, set.get()), 1, kMostThreads);
    if (errno != EINVAL) break;  // EINVAL: the system has more processors than the set has room for
  }
  return 1;
}

int default_threads() {
  return count_processors(
      [](size_t bytes, cpu_set_t* set) { return sched_getaffinity(0, bytes, set); });
}

}  // namespace stet
