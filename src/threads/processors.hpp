// Counts the processors that this process may use.
#pragma once

#include <sched.h>

#include <functional>

namespace stet {

// Counts the processors of an affinity mask. get_affinity(bytes, set) writes it, or fails with
// EINVAL if `set` is too small.
int count_processors(const std::function<int(size_t, cpu_set_t*)>& get_affinity);
int count_processors();  // counts those of the calling thread's mask

}  // namespace stet
