#include "stet/team.hpp"

#include <sched.h>

#include <algorithm>

#include "kernels/kernels.hpp"

#ifdef STET_HAVE_OPENMP
#include <omp.h>
#endif

namespace stet {
namespace {

void run_member(Team team, const std::function<void(Team)>& work) {
  const uint64_t previous = enter_float_environment();
  work(team);
  leave_float_environment(previous);
}

}  // namespace

void Team::barrier() const {
#ifdef STET_HAVE_OPENMP
  if (size > 1) {
#pragma omp barrier
  }
#endif
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
#pragma omp parallel num_threads(threads)
    run_member({omp_get_thread_num(), omp_get_num_threads()}, work);
    return;
  }
#endif
  (void)threads;
  run_member({}, work);
}

int default_threads() {
#ifdef STET_HAVE_OPENMP
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return 1;
}

}  // namespace stet
