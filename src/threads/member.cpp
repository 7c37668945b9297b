#include "src/threads/member.hpp"

#include <utility>

#include "stet/kernels/float_environment.hpp"

namespace stet {
namespace {

thread_local bool member = false;

}  // namespace

bool is_member() { return member; }

TeamProgress run_member(int rank, int size, WorkQueue& queue,
                        const std::function<void(Team)>& work) {
  const bool before = std::exchange(member, true);
  TeamProgress tally;
  {
    const FloatEnvironment contract;
    work({rank, size, &queue, &tally});
  }
  member = before;
  return tally;
}

void run_alone(const std::function<void(Team)>& work) {
  const FloatEnvironment contract;
  work({});
}

}  // namespace stet
