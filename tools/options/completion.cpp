// Completion scripts and the manual page, made from the descriptions that --help prints.
#include <fmt/format.h>

#include <algorithm>

#include "tools/options/help.hpp"

namespace stet::tool {
namespace {

bool is_flag(const CLI::Option& option) { return type_of(option).empty(); }

std::string replaced(std::string text, std::string_view what, std::string_view with) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size())
    text.replace(at, what.size(), with);
  return text;
}

std::string all_names(const CLI::App& app) {
  std::string names;
  for (const CLI::Option* option : options_of(app))
    names += (names.empty() ? "" : " ") + fmt::format("{}", fmt::join(names_of(*option), " "));
  return names;
}

// ---------------------------------------------------------------- zsh

// Escapes text for single quotes, where a colon or a bracket would also end it.
std::string zsh_text(const std::string& text) {
  return replaced(
      replaced(replaced(replaced(replaced(text, "\\", "\\\\"), "'", "'\\''"), ":", "\\:"), "[",
               "\\["),
      "]", "\\]");
}

// Returns the part of an option that completes its value: ":name:action" of _arguments.
std::string zsh_value(const CLI::Option& option) {
  const std::string type = type_of(option);
  const std::vector<std::string> values = values_of(option);
  if (type.empty()) return "";
  const std::string action = !values.empty()  ? fmt::format("({})", fmt::join(values, " "))
                             : type == "FILE" ? "_files"
                             : type == "DIR"  ? "_files -/"
                                              : " ";
  return fmt::format(":{}:{}", type, action);
}

// Returns a line for each option of a subcommand, in the syntax of _arguments.
std::string zsh_arguments(const CLI::App& sub) {
  std::string lines;
  for (const CLI::Option* option : options_of(sub)) {
    const std::vector<std::string> names = names_of(*option);
    const std::string rest =
        fmt::format("[{}]{}", zsh_text(option->get_description()), zsh_value(*option));
    const bool again =
        option->get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll && !is_flag(*option);
    for (const std::string& name : names)
      lines += fmt::format(" \\\n        '{}{}{}'", again ? "*" : "", name, rest);
  }
  for (const CLI::Option* option : positionals_of(sub)) {
    if (!option->nonpositional())
      lines += fmt::format(" \\\n        '{}'",
                           zsh_value(*option).empty() ? ":file:_files" : zsh_value(*option));
  }
  return lines;
}

// ---------------------------------------------------------------- manual

// Escapes text for troff, where backslashes and hyphens are special, and dots and quotes at the
// beginning of a line.
std::string troff_text(const std::string& text) {
  const std::string safe = replaced(replaced(replaced(text, "\\", "\\e"), "-", "\\-"), "…", "...");
  return safe.starts_with(".") || safe.starts_with("'") ? "\\&" + safe : safe;
}

std::string troff_option(const CLI::Option& option) {
  std::string names;
  for (const std::string& name : names_of(option))
    names += (names.empty() ? "" : ", ") + ("\\fB" + troff_text(name) + "\\fR");
  if (names.empty()) names = "\\fI" + troff_text(option.get_name(true)) + "\\fR";
  const std::string type = type_of(option);
  const std::vector<std::string> values = values_of(option);
  std::string text = ".TP\n" + names + (type.empty() ? "" : " \\fI" + troff_text(type) + "\\fR") +
                     "\n" + troff_text(option.get_description()) + "\n";
  if (!values.empty())
    text += troff_text(fmt::format("Values: {}.", fmt::join(values, ", "))) + "\n";
  return text;
}

std::string troff_subcommand(const CLI::App& sub) {
  std::string text = fmt::format(".SS stet {}\n{}\n", troff_text(sub.get_name()),
                                 troff_text(sub.get_description()));
  for (const CLI::Option* option : positionals_of(sub)) {
    if (!option->nonpositional()) text += troff_option(*option);
  }
  for (const CLI::Option* option : options_of(sub)) text += troff_option(*option);
  return text;
}

// Returns the lines as troff text whose line breaks are kept.
std::string troff_example(const std::string& text) {
  std::string lines;
  for (const std::string& line : CLI::detail::split(text, '\n')) lines += troff_text(line) + "\n";
  return ".nf\n" + lines + ".fi\n";
}

}  // namespace

std::string bash_completion(const CLI::App& app) {
  std::string subs, options, values;
  for (const CLI::App* sub : subcommands_of(app)) {
    subs += sub->get_name() + " ";
    options += fmt::format("    {}) words=\"{}\" ;;\n", sub->get_name(), all_names(*sub));
    for (const CLI::Option* option : options_of(*sub)) {
      for (const std::string& name : names_of(*option)) {
        const std::vector<std::string> known = values_of(*option);
        if (!known.empty())
          values += fmt::format("    \"{} {}\") words=\"{}\" ;;\n", sub->get_name(), name,
                                fmt::join(known, " "));
      }
    }
    for (const CLI::Option* option : positionals_of(*sub)) {
      const std::vector<std::string> known = values_of(*option);
      if (!known.empty())
        values += fmt::format("    \"{0} {0}\") words=\"{1}\" ;;\n", sub->get_name(),
                              fmt::join(known, " "));
    }
  }
  return fmt::format(R"(# Completion of stet for bash. Where nothing is known, file names complete.
_stet() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ] || [ "$COMP_CWORD $before" = "2 help" ]; then
    COMPREPLY=($(compgen -W "{}{}" -- "$word"))
    return
  fi
  case "${{COMP_WORDS[1]}} $before" in
{}  esac
  if [ -z "$words" ] && [[ $word == -* ]]; then
    case ${{COMP_WORDS[1]}} in
{}    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _stet stet
)",
                     subs, all_names(app), values, options);
}

std::string zsh_completion(const CLI::App& app) {
  std::string subs, cases;
  for (const CLI::App* sub : subcommands_of(app)) {
    subs += fmt::format("    '{}:{}'\n", sub->get_name(), zsh_text(sub->get_description()));
    cases +=
        fmt::format("    {})\n      _arguments -s{} ;;\n", sub->get_name(), zsh_arguments(*sub));
  }
  return fmt::format(R"(#compdef stet
# Completion of stet for zsh.
_stet() {{
  local -a subcommands
  subcommands=(
{}  )
  if (( CURRENT == 2 )); then
    _describe subcommand subcommands
    return
  fi
  shift words
  (( CURRENT-- ))
  case $words[1] in
{}  esac
}}
_stet "$@"
)",
                     subs, cases);
}

std::string manual_page(const CLI::App& app) {
  std::string text =
      fmt::format(".TH STET 1 \"\" \"{}\" \"User Commands\"\n.SH NAME\nstet \\- {}\n",
                  troff_text(app.version().substr(0, app.version().find('\n'))),
                  troff_text(app.get_description().substr(app.get_description().find(": ") + 2)));
  text += ".SH SYNOPSIS\n.B stet\n.I subcommand\n[\\fIoptions\\fR]\n.SH OPTIONS\n";
  for (const CLI::Option* option : options_of(app)) text += troff_option(*option);
  text += ".SH SUBCOMMANDS\n";
  for (const CLI::App* sub : subcommands_of(app)) text += troff_subcommand(*sub);
  return text + ".SH EXAMPLES AND EXIT STATUS\n" + troff_example(app.get_footer());
}

}  // namespace stet::tool
