// The processors that this process may run on.
#pragma once

#include <sched.h>

#include <functional>

namespace stet {

// The processors of an affinity mask, which get_affinity(bytes, set) writes, or refuses with EINVAL
// while it has no room.
int count_processors(const std::function<int(size_t, cpu_set_t*)>& get_affinity);
int count_processors();  // of the calling thread's mask

}  // namespace stet
