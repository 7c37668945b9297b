// stet equivalence --against CMD: somebody else's runtime, asked for the same logits by many ways.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stet::tool {

// Runs the command by sh, asks it (docs/lab.md has the protocol) and prints a table, or
// JSON. Returns how many ways changed bits. Throws an io Error where it ends or does not answer as
// agreed.
size_t run_against(const std::string& command, const std::vector<int32_t>& ids, int64_t window,
                   bool json);

}  // namespace stet::tool
