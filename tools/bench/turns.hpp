#pragma once

#include "tools/command/command.hpp"

namespace stet::tool {

// Prints `loaded`, the figures of a session without tokens, together with the time of its first
// token. Then answers each line of standard input with a line of JSON:
//   prefill     {"s": ...}: `prompt` tokens, which replace all others
//   decode N    {"s": ...}: N more, one after another
//   state       {"positions": ..., ...}: state_figures() of `repeat` runs, and the earlier
//               "peak_bytes"
// Throws a format Error for any other line.
void answer_turns(Session& session, const SessionOptions& options, Json loaded, int64_t prompt,
                  int repeat);

}  // namespace stet::tool
