// Runs one member of a team, whichever backend provides its thread.
#pragma once

#include <functional>

#include "stet/threads/team.hpp"

namespace stet {

// Returns whether this thread is a member of a team. If so, a run that it starts uses this thread
// alone.
bool is_member();

// Calls work(Team) under the contract's floating-point environment. `queue` belongs to the run.
TeamProgress run_member(int rank, int size, WorkQueue& queue,
                        const std::function<void(Team)>& work);
// Calls work(Team) for a team of one, which needs no queue.
void run_alone(const std::function<void(Team)>& work);

}  // namespace stet
