#include "tools/command/run.hpp"

#ifdef STET_STATIC
#include <cstdlib>

// Replaces libstdc++'s handler, which names the exception that nobody caught, and the 50 kB that a
// static program needs for that.
namespace __gnu_cxx {
void __verbose_terminate_handler() { std::abort(); }
}  // namespace __gnu_cxx
#endif

int main(int argc, char** argv) { return stet::tool::run_command(argc, argv); }
