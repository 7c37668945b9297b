// Help, unknown words, completion scripts and the manual page, all made from the CLI::App.
#pragma once

#include <string>
#include <vector>

#include "tools/options/cli11.hpp"

namespace stet::tool {

// Formats help with names and types only. The library would also list limits and exclusions, which
// crowd out the descriptions.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override;
};

std::vector<const CLI::App*> subcommands_of(const CLI::App& app);
// Returns the options that begin with '-', in the order of the help.
std::vector<const CLI::Option*> options_of(const CLI::App& app);
std::vector<const CLI::Option*> positionals_of(const CLI::App& app);
std::vector<std::string> names_of(const CLI::Option& option);   // "-p", "--prompt"
std::string type_of(const CLI::Option& option);                 // "FILE"; "" for a flag
std::vector<std::string> values_of(const CLI::Option& option);  // the words of one_of(), or none

// Returns one line that says what is wrong with a command line that was refused for `reason`. An
// unknown word takes precedence.
std::string usage_text(const CLI::App& app, const std::string& reason);
// Returns the text for a missing argument: "diff needs b, the snapshot to compare it with: stet
// diff a b". `reason` is the library's text, which is returned where it names an option.
std::string missing_text(const CLI::App& app, const std::string& reason);

// Return a completion script, or the manual page.
std::string bash_completion(const CLI::App& app);
std::string zsh_completion(const CLI::App& app);
std::string manual_page(const CLI::App& app);

}  // namespace stet::tool
