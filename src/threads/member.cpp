#include "src/threads/member.hpp"

#include <utility>

#include "src/float_environment.hpp"

namespace stet {
namespace {

thread_local bool member = false;

}  // namespace

bool is_member() { return member; }

void run_member(int rank, int size, WorkQueue& queue, const std::function<void(Team)>& work) {
  const bool before = std::exchange(member, true);
  uint32_t op = 0;
  {
    const FloatEnvironment contract;
    work({rank, size, &queue, &op});
  }
  member = before;
}

void run_alone(const std::function<void(Team)>& work) {
  const FloatEnvironment contract;
  work({});
}

}  // namespace stet
