#pragma once

#include "tools/command/command.hpp"

namespace stet::tool {

// One row per length: see print_snapshot_figures for the columns. Files are written to `directory`
// and removed.
Json snapshot_figures(const std::shared_ptr<const Model>& model, const SessionOptions& options,
                      const std::vector<int64_t>& lengths, int repeat,
                      const std::string& directory);
// save beside write() and fsync of the same bytes; resume: open and restore, mapped; 1st token
// after it beside an ordinary decode step and the page faults of the file; fork; read: a restore
// that copies and checks, beside memcpy of the same bytes by as many threads; how much sooner the
// first token comes than by processing the tokens again (at the speed of the shortest length, which
// favours that way).
void print_snapshot_figures(const Json& rows);

}  // namespace stet::tool
