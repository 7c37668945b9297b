#include "src/threads/processors.hpp"

#include <algorithm>
#include <cerrno>
#include <memory>

#include "stet/threads/team.hpp"

namespace stet {

int count_processors(const std::function<int(size_t, cpu_set_t*)>& get_affinity) {
  for (size_t most = 1024; most <= size_t{1} << 20; most *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(most),
                                                               [](cpu_set_t* s) { CPU_FREE(s); });
    const size_t bytes = CPU_ALLOC_SIZE(most);
    if (get_affinity(bytes, set.get()) == 0)
      return std::clamp(CPU_COUNT_S(bytes, set.get()), 1, kMaxThreads);
    if (errno != EINVAL) break;  // EINVAL: the set is too small
  }
  return 1;
}

int count_processors() {
  return count_processors(
      [](size_t bytes, cpu_set_t* set) { return sched_getaffinity(0, bytes, set); });
}

}  // namespace stet
