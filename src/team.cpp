#include "stet/team.hpp"

#include <sched.h>

#include <algorithm>
#include <exception>
#include <mutex>

#include "src/float_environment.hpp"

#ifdef STET_HAVE_OPENMP
#include <omp.h>
#endif

namespace stet {
namespace {

constexpr int kSpins = 2000;  // some tens of microseconds

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

void run_member(Team team, const std::function<void(Team)>& work) {
  const FloatEnvironment contract;
  work(team);
}

}  // namespace

Range part_of(size_t n, size_t parts, size_t i) {
  const size_t each = n / parts, more = n % parts, begin = i * each + std::min(i, more);
  return {begin, begin + each + (i < more ? 1 : 0)};
}

uint32_t Work::take(uint32_t op, uint32_t n) {
  uint64_t next = next_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(next >> 32) == op) {
    const uint32_t piece = static_cast<uint32_t>(next);
    if (piece == n) {
      wait(op);
      return kNone;
    }
    if (next_.compare_exchange_weak(next, next + 1, std::memory_order_acq_rel)) return piece;
  }
  return kNone;
}

bool Work::finish(uint32_t op, uint32_t n) {
  if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 != n) return false;
  done_.store(0, std::memory_order_relaxed);
  op_.store(op + 1, std::memory_order_relaxed);
  next_.store(static_cast<uint64_t>(op + 1) << 32, std::memory_order_release);
  op_.notify_all();
  return true;
}

// A short spin, because pieces are even, then a sleep, so that a busy machine loses no time to waiting threads.
void Work::wait(uint32_t op) {
  for (int i = 0; i < kSpins; ++i) {
    if (static_cast<uint32_t>(next_.load(std::memory_order_acquire) >> 32) != op) return;
    pause();
  }
  while (static_cast<uint32_t>(next_.load(std::memory_order_acquire) >> 32) == op) op_.wait(op, std::memory_order_relaxed);
}

size_t Team::parts_of(size_t n, size_t least) const {
  if (work == nullptr) return 1;
  constexpr size_t kEach = 8;  // parts for each thread: what the slowest is behind by is a part at most
  const size_t threads = static_cast<size_t>(size);
  if (n < threads * least) return std::max<size_t>(1, std::min(n, threads));
  return std::min(threads * kEach, n / least / threads * threads);
}

void run_team(int threads, const std::function<void(Team)>& work) {
#ifdef STET_HAVE_OPENMP
  if (threads > 1) {
    // The runtime may grant fewer threads than asked for; shares follow what it granted.
    Work shared;
#pragma omp parallel num_threads(threads)
    {
      const int size = omp_get_num_threads();
      uint32_t op = 0;
      run_member({omp_get_thread_num(), size, size > 1 ? &shared : nullptr, &op}, work);
    }
    return;
  }
#endif
  (void)threads;
  run_member({}, work);
}

void run_each(int threads, size_t n, const std::function<void(size_t)>& work) {
  std::mutex mutex;
  size_t failed = n;
  std::exception_ptr failure;
  run_team(threads, [&](Team team) {
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

int default_threads() {
#ifdef STET_HAVE_OPENMP
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return 1;
}

}  // namespace stet
