// Replaces stet serve in a build without an HTTP library: it throws an Error.
#include "stet/base/error.hpp"
#include "tools/command/command.hpp"

namespace stet::tool {

void add_serve(Command& app) {
  Command* sub = app.add_subcommand("serve", "States over HTTP; this build has no HTTP library.");
  sub->callback([] {
    throw Error(ErrorKind::unsupported, "", "serve", "a build with Boost.Beast (libboost-dev)",
                "one without");
  });
}

}  // namespace stet::tool
