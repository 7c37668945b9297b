// Keeps a command from replacing the files that it reads.
#pragma once

#include "tools/options/options.hpp"

namespace stet::tool {

// Makes parsing throw a UsageError if a file that the subcommand writes is one that it reads, under
// any name. A snapshot may be replaced by the one that continues it.
void refuse_to_replace_inputs(Command& app);

}  // namespace stet::tool
