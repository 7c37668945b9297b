#include "tools/command/run.hpp"

#ifdef STET_STATIC
#include <cstdlib>

// Replaces libstdc++'s handler, which prints the name of an uncaught exception and adds 50 kB to a
// static program.
namespace __gnu_cxx {
void __verbose_terminate_handler() { std::abort(); }
}  // namespace __gnu_cxx
#endif

int main(int argc, char** argv) { return stet::tool::run_command(argc, argv); }
