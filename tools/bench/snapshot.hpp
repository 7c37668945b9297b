#pragma once

#include "tools/command/command.hpp"

namespace stet::tool {

// Returns one row per length, with the columns of print_snapshot_figures(). Files are written to
// `directory` and removed.
Json snapshot_figures(const std::shared_ptr<const Model>& model, const SessionOptions& options,
                      const std::vector<int64_t>& lengths, int repeat,
                      const std::string& directory);
// Prints a table of these columns:
//   save:      next to write() and fsync of the same bytes
//   resume:    open and restore, mapped
//   1st token: after resume, next to an ordinary decode step and the page faults of the file
//   fork
//   read:      a restore that copies and checks, next to memcpy with as many threads
// The last column is the speed-up of the first token over processing the tokens again. It uses the
// speed of the shortest length, which favours processing.
void print_snapshot_figures(const Json& rows);

}  // namespace stet::tool
