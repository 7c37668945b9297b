// What one member of a team does, whichever backend its thread comes from.
#pragma once

#include <functional>

#include "stet/threads/team.hpp"

namespace stet {

// Whether this thread is a member of a team: then a run of its own is this thread's alone.
bool is_member();

// Calls work(Team) under the contract's floating-point environment; `queue` is the run's.
Tally run_member(int rank, int size, WorkQueue& queue, const std::function<void(Team)>& work);
// The same for a team of one, which needs no queue.
void run_alone(const std::function<void(Team)>& work);

}  // namespace stet
