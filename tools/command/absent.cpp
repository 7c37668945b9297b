// Replaces the subcommands that a build leaves out. They say what the build lacks.
#include "tools/command/command.hpp"

namespace stet::tool {

#ifndef STET_HAVE_BEAST
void add_serve(Command& app) {
  app.add_absent("serve", "States over HTTP; this build has no HTTP library.",
                 "a build with Boost.Beast (libboost-dev)");
}
#endif

#ifndef STET_HAVE_BENCH_COMMAND
void add_bench(Command& app) {
  app.add_absent("bench", "Measurements; this build has none.",
                 "a build with -DSTET_BENCH_COMMAND=ON");
}
#endif

}  // namespace stet::tool
