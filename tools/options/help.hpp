// What the command line says of itself: help, unknown words, completion, the manual. All of it is
// read from the CLI::App.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace stet::tool {

// Names and types alone: the limits and exclusions that the library would list crowd out what an
// option is for.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override;
};

std::vector<const CLI::App*> subcommands_of(const CLI::App& app);
// The options that begin with '-', in the order of the help.
std::vector<const CLI::Option*> options_of(const CLI::App& app);
std::vector<const CLI::Option*> positionals_of(const CLI::App& app);
std::vector<std::string> names_of(const CLI::Option& option);   // "-p", "--prompt"
std::string type_of(const CLI::Option& option);                 // "FILE"; "" of a flag
std::vector<std::string> values_of(const CLI::Option& option);  // of one_of(); else none

// One line on what is wrong with a command line that was refused for `reason`; an unknown word is
// named before anything else.
std::string usage_text(const CLI::App& app, const std::string& reason);
// Returns the text for a missing argument: "diff needs b, the snapshot to compare it with: stet diff
// a b". `reason` is the library's text, which is returned where it names an option.
std::string missing_text(const CLI::App& app, const std::string& reason);

// Completion for a shell, and the manual page.
std::string bash_completion(const CLI::App& app);
std::string zsh_completion(const CLI::App& app);
std::string manual_page(const CLI::App& app);

}  // namespace stet::tool
