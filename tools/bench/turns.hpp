#pragma once

#include "tools/command/command.hpp"

namespace stet::tool {

// Prints `loaded`, what is known of a session without tokens, and the time of its first one; then
// answers each line of standard input by one of JSON:
//   prefill     {"s": ...}: `prompt` tokens in place of all there are
//   decode N    {"s": ...}: N more, one after another
//   state       {"positions": ..., ...}: state_figures() of `repeat` runs, and "peak_bytes" before
//               them
// Throws a format Error for any other line.
void answer_turns(Session& session, const SessionOptions& options, Json loaded, int64_t prompt,
                  int repeat);

}  // namespace stet::tool
