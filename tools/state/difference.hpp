// The JSON form of a difference between two states.
#pragma once

#include "stet/snapshot/compare.hpp"
#include "tools/command/command.hpp"

namespace stet::tool {

// Returns the object; fields that do not apply are null.
Json difference_json(const Difference& difference);

}  // namespace stet::tool
