// stet equivalence --against CMD: asks another runtime for the same logits in many ways.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stet::tool {

// Runs the command by sh and asks it by the protocol of docs/lab.md. Prints a table, or
// JSON. Returns the number of ways that changed bits. Throws an io Error if the program ends or
// breaks the protocol.
size_t run_against(const std::string& command, const std::vector<int32_t>& ids, int64_t window,
                   bool json);

}  // namespace stet::tool
