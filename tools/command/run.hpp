// The whole command, for main() and for the fuzzer that runs it on forged files.
#pragma once

namespace stet::tool {

// With the words of a command line, the program's name first. Returns the exit status; throws
// nothing.
int run_command(int argc, char** argv);

}  // namespace stet::tool
