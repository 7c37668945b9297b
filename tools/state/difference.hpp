// How subcommands tell of a difference between two states.
#pragma once

#include "stet/snapshot/compare.hpp"
#include "tools/command/command.hpp"

namespace stet::tool {

// Numbers are numbers; what does not apply is null.
Json difference_json(const Difference& difference);

}  // namespace stet::tool
