// STET_TEST_TEAM names the backend of all teams of a test program, so that each can be run with
// any.
#include <cstdlib>

#include "stet/threads/team.hpp"

namespace stet::test {
namespace {

[[maybe_unused]] const bool is_chosen = [] {
  const char* const name = std::getenv("STET_TEST_TEAM");
  if (name != nullptr) set_team_backend(team_backend_of(name).value());
  return name != nullptr;
}();

}  // namespace
}  // namespace stet::test
