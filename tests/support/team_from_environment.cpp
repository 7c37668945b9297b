// Reads STET_TEST_TEAM, which selects the team backend of a test program, so that every program can
// run with any backend. Lets small models use all threads, so that tests divide their work.
#include <cstdlib>

#include "stet/threads/team.hpp"

namespace stet::test {
namespace {

[[maybe_unused]] const bool is_chosen = [] {
  use_all_threads(true);
  const char* const name = std::getenv("STET_TEST_TEAM");
  if (name != nullptr) set_team_backend(team_backend_of(name).value());
  return name != nullptr;
}();

}  // namespace
}  // namespace stet::test
