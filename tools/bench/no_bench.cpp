// Replaces stet bench in a build without it: it throws an Error.
#include "stet/base/error.hpp"
#include "tools/command/command.hpp"

namespace stet::tool {

void add_bench(Command& app) {
  Command* sub = app.add_subcommand("bench", "Measurements; this build has none.");
  sub->callback([] {
    throw Error(ErrorKind::unsupported, "", "bench", "a build with -DSTET_BENCH_COMMAND=ON",
                "one without");
  });
}

}  // namespace stet::tool
