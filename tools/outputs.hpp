// Options that name what is to be written.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace stet::tool {

// A name that is not empty: an output without one would be computed and lost.
inline CLI::Validator named() {
  return CLI::Validator(
      [](std::string& name) {
        return name.empty() ? std::string("expected a name, found \"\"") : std::string();
      },
      "");
}

// -o, --output, --save: the snapshot that a subcommand writes. Whoever has it tries it
// (check_writable) before computing.
inline CLI::Option* add_output(CLI::App& app, std::string& path, const std::string& help) {
  return app.add_option("-o,--output,--save", path, help)->type_name("FILE")->check(named());
}
// The same where it is not what the subcommand is for: help and errors call it --save.
inline CLI::Option* add_save_output(CLI::App& app, std::string& path, const std::string& help) {
  return app.add_option("--save,-o,--output", path, help)->type_name("FILE")->check(named());
}

}  // namespace stet::tool
