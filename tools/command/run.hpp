// The whole command, called by main() and by the fuzzer that runs it on forged files.
#pragma once

namespace stet::tool {

// Runs a command line, whose first word is the program's name. Returns the exit status. Throws
// nothing.
int run_command(int argc, char** argv);

}  // namespace stet::tool
