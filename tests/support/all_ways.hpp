#pragma once

#include <cstdlib>

namespace stet::test {

// Returns true if tests go through all combinations, as tools/check --full does, instead of pairs
// or samples of them.
inline bool all_ways() { return std::getenv("STET_ALL_WAYS") != nullptr; }

}  // namespace stet::test
