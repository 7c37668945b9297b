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

void Barrier::wait(int members) {
  const unsigned round = round_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == members) {
    arrived_.store(0, std::memory_order_relaxed);
    round_.store(round + 1, std::memory_order_release);
    round_.notify_all();
    return;
  }
  for (int i = 0; i < kSpins; ++i) {
    if (round_.load(std::memory_order_acquire) != round) return;
    pause();
  }
  round_.wait(round, std::memory_order_acquire);
}

Range Team::share(size_t n) const {
  const size_t each = n / static_cast<size_t>(size), more = n % static_cast<size_t>(size);
  const size_t r = static_cast<size_t>(rank);
  const size_t begin = r * each + std::min(r, more);
  return {begin, begin + each + (r < more ? 1 : 0)};
}

void run_team(int threads, const std::function<void(Team)>& work) {
#ifdef STET_HAVE_OPENMP
  if (threads > 1) {
    // The runtime may grant fewer threads than asked for; shares follow what it granted.
    Barrier barrier;
#pragma omp parallel num_threads(threads)
    {
      const int size = omp_get_num_threads();
      run_member({omp_get_thread_num(), size, size > 1 ? &barrier : nullptr}, work);
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
    const Range mine = team.share(n);
    for (size_t i = mine.begin; i < mine.end; ++i) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < failed) failure = std::current_exception();
        failed = std::min(failed, i);
        return;
      }
    }
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
