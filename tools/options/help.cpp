#include "tools/options/help.hpp"

#include <fmt/format.h>

#include "stet/base/error.hpp"
#include "tools/command/command.hpp"
#include "tools/command/words.hpp"

namespace stet::tool {
namespace {

std::vector<std::string> subcommand_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : subcommands_of(app)) names.push_back(sub->get_name());
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> all;
  for (const CLI::Option* option : options_of(app)) {
    for (const std::string& name : names_of(*option)) all.push_back(name);
  }
  return all;
}

std::string unknown_text(const char* kind, const std::string& word,
                         const std::vector<std::string>& known) {
  const std::string hint = did_you_mean(word, known);
  return fmt::format("unknown {} {}{}", kind, printable(word, 80), hint);
}

void print_help(const CLI::App& app, const std::string& name) {
  const std::vector<const CLI::App*> all = subcommands_of(app);
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const CLI::App* sub) { return sub->get_name() == name; });
  if (found == all.end()) throw UsageError(unknown_text("subcommand", name, subcommand_names(app)));
  out((*found)->help("stet"));
}

}  // namespace

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  const std::string type = type_of(*option);
  return (type.empty() ? "" : " " + type) + (option->get_required() ? " (required)" : "");
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string name,
                                     CLI::AppFormatMode mode) const {
  std::string help = CLI::Formatter::make_help(app, std::move(name), mode);
  for (size_t at = 0; (at = help.find("\n\n\n", at)) != std::string::npos;) help.erase(at, 1);
  return help;
}

std::vector<const CLI::App*> subcommands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<const CLI::Option*> options_of(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return option->nonpositional(); });
}

std::vector<const CLI::Option*> positionals_of(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return option->get_positional(); });
}

std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

// Returns the type without the validator's description, which CLI11 appends after a colon.
std::string type_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.substr(0, type.find(':'));
}

std::vector<std::string> values_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t colon = type.find(':');
  return colon == std::string::npos ? std::vector<std::string>()
                                    : CLI::detail::split(type.substr(colon + 1), '|');
}

// CLI11 writes "NAME is required".
std::string missing_text(const CLI::App& app, const std::string& reason) {
  const CLI::App* sub = &app;
  std::string usage = "stet", needed;
  while (!sub->get_subcommands().empty()) {
    sub = sub->get_subcommands().back();
    usage += " " + sub->get_name();
  }
  for (const CLI::Option* option : positionals_of(*sub)) {
    const std::string name = option->get_single_name();
    usage += option->get_required() ? " " + name : " [" + name + "]";
    if (reason == name + " is required")
      needed = fmt::format("{} needs {}, {}", sub->get_name(), name, option->get_description());
  }
  return needed.empty() ? reason : needed + ": " + usage;
}

std::string usage_text(const CLI::App& app, const std::string& reason) {
  const auto named = app.get_subcommands();
  const CLI::App& at = named.empty() ? app : *named.back();
  const std::vector<std::string> unknown = app.remaining(true);
  std::string text = reason;
  if (!unknown.empty()) {
    const std::string word = unknown[0].substr(
        0, unknown[0].starts_with("--") ? unknown[0].find('=') : std::string::npos);
    if (word.starts_with("-"))
      text = unknown_text("option", word, option_names(at));
    else if (named.empty())
      text = unknown_text("subcommand", word, subcommand_names(app));
  }
  return printable(text, 400) + " (stet --help)";
}

void add_help(Command& app) {
  const auto name = std::make_shared<std::string>();
  Command* sub = app.add_subcommand("help", "Show the help of a subcommand.");
  sub->add_option("subcommand", *name, "a subcommand that stet --help lists")->type_name("NAME");
  sub->callback([name, &app] {
    if (name->empty())
      out(app.library().get_formatter()->make_help(&app.library(), "stet",
                                                   CLI::AppFormatMode::Normal));
    else
      print_help(app.library(), *name);
  });
}

void add_completion(Command& app) {
  const auto form = std::make_shared<std::string>();
  Command* sub = app.add_subcommand(
      "completion", "Print a completion script for bash or zsh, or the manual page.");
  sub->add_option("form", *form, "bash, zsh or man")
      ->required()
      ->type_name("FORM")
      ->check(one_of({"bash", "zsh", "man"}));
  sub->callback([form, &app] {
    out(*form == "bash"  ? bash_completion(app.library())
        : *form == "zsh" ? zsh_completion(app.library())
                         : manual_page(app.library()));
  });
}

}  // namespace stet::tool
