// The `stet` command. Exit status: 0 done; 1 the input or the state is at fault; 2 the command line is.
#include <fmt/format.h>

#include <csignal>
#include <exception>
#include <new>

#include "stet/error.hpp"
#include "tools/command.hpp"

int main(int argc, char** argv) {
  using namespace stet::tool;
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is a write error like any other
  CLI::App app{"stet: transformer state that can be saved, moved and proved, bit for bit", "stet"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "stet " STET_VERSION);
  for (auto add : {add_generate, add_save, add_resume, add_logits, add_tokenize, add_detokenize, add_inspect, add_bench}) {
    add(app);
  }
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);
    fmt::print(stderr, "stet: {} (stet --help)\n", stet::printable(e.what(), 400));
    return 2;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "stet: expected enough memory, found none left\n");
  } catch (const std::exception& e) {
    fmt::print(stderr, "stet: {}\n", stet::printable(e.what(), 2000));
  }
  return 1;
}
