#include "tools/options/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "stet/base/error.hpp"
#include "tools/command/words.hpp"
#include "tools/options/cli11.hpp"
#include "tools/options/help.hpp"

namespace stet::tool {

void usage_error(const std::string& option, const std::string& expected, const std::string& found) {
  throw UsageError(option + ": expected " + expected + ", found " + found);
}

void usage_error(const std::string& text) { throw UsageError(text); }

void required_error(const std::string& names) { throw UsageError(names + " is required"); }

// ---------------------------------------------------------------- values

Check one_of(std::vector<std::string> words) {
  std::string known = fmt::format("{}", fmt::join(words, "|"));
  return {[words = std::move(words)](std::string& text) {
            if (std::find(words.begin(), words.end(), text) != words.end()) return std::string();
            return fmt::format("expected {}, found {}{}", listed(words),
                               text.empty() ? "nothing" : text, did_you_mean(text, words));
          },
          std::move(known)};
}

Check integer(uint64_t min, uint64_t max) {
  return {[min, max](std::string& text) {
            uint64_t value = 0;
            const char* const end = text.data() + text.size();
            const auto [stop, error] = std::from_chars(text.data(), end, value);
            if (error == std::errc() && stop == end && value >= min && value <= max) {
              text = std::to_string(value);
              return std::string();
            }
            return fmt::format("expected an integer in {}..{}, found {}", min, max, text);
          },
          ""};
}

Check named() {
  return {[](std::string& name) {
            return name.empty() ? std::string("expected a name, found \"\"") : std::string();
          },
          ""};
}

// ---------------------------------------------------------------- options

Option* Option::type_name(const std::string& name) {
  option_->type_name(name);
  return name == "FILE" || name == "DIR" ? check(named()) : this;
}
Option* Option::group(const std::string& name) {
  option_->group(name);
  return this;
}
Option* Option::description(const std::string& text) {
  option_->description(text);
  return this;
}
Option* Option::check(Check check) {
  option_->check(CLI::Validator(std::move(check.fault), std::move(check.values)));
  return this;
}
Option* Option::required() {
  option_->required();
  return this;
}
Option* Option::needs(const Option* other) {
  option_->needs(other->option_);
  return this;
}
Option* Option::needs(const std::string& name) {
  option_->needs<CLI::App>(name);
  return this;
}
Option* Option::excludes(const Option* other) {
  option_->excludes(other->option_);
  return this;
}
Option* Option::excludes(const std::string& name) {
  option_->excludes<CLI::App>(name);
  return this;
}
Option* Option::delimiter(char c) {
  option_->delimiter(c);
  return this;
}
Option* Option::allow_extra_args(bool allow) {
  option_->allow_extra_args(allow);
  return this;
}
Option* Option::show_default() {
  option_->capture_default_str();
  return this;
}
size_t Option::count() const { return option_->count(); }
std::string Option::get_name() const { return option_->get_name(); }

// ---------------------------------------------------------------- commands

struct Command::Root {
  Root(const std::string& description, const std::string& name) : app(description, name) {}
  CLI::App app;
};

Command::Command(const std::string& description, const std::string& name)
    : root_(std::make_unique<Root>(description, name)), app_(&root_->app) {
  app_->formatter(std::make_shared<HelpFormatter>());
  app_->get_formatter()->column_width(28);
}
Command::Command(CLI::App* app) : app_(app) {}
Command::~Command() = default;

Option* Command::keep(CLI::Option* option) {
  options_.push_back(std::make_unique<Option>(option));
  return options_.back().get();
}

Command* Command::add_subcommand(const std::string& name, const std::string& description) {
  subcommands_.emplace_back(new Command(app_->add_subcommand(name, description)));
  return subcommands_.back().get();
}

void Command::add_absent(const std::string& name, const std::string& description,
                         const std::string& needed) {
  Command* const sub = add_subcommand(name, description);
  sub->app_->allow_extras();
  sub->callback(
      [name, needed] { throw Error(ErrorKind::unsupported, "", name, needed, "one without"); });
}

template <class T>
Option* Command::add_option(const std::string& names, T& value, const std::string& help) {
  return keep(app_->add_option(names, value, help));
}
#define STET_OPTION(...) \
  template Option* Command::add_option(const std::string&, __VA_ARGS__&, const std::string&);
STET_OPTION(std::string)
STET_OPTION(int)
STET_OPTION(int64_t)
STET_OPTION(uint64_t)
STET_OPTION(double)
STET_OPTION(std::optional<std::string>)
STET_OPTION(std::optional<int>)
STET_OPTION(std::optional<int64_t>)
STET_OPTION(std::optional<uint64_t>)
STET_OPTION(std::optional<double>)
STET_OPTION(std::vector<std::string>)
STET_OPTION(std::vector<int32_t>)
STET_OPTION(std::vector<int64_t>)
STET_OPTION(std::vector<double>)
#undef STET_OPTION

Option* Command::add_option_function(const std::string& names,
                                     const std::function<void(const std::string&)>& take,
                                     const std::string& help) {
  return keep(app_->add_option_function<std::string>(names, take, help));
}

Option* Command::add_flag(const std::string& names, bool& value, const std::string& help) {
  return keep(app_->add_flag(names, value, help));
}

// CLI11's own option for lists takes all arguments that follow, and splits [a,b].
Option* Command::add_texts(const std::string& names, std::vector<std::string>& texts,
                           const std::string& help) {
  return keep(app_->add_option(names, texts, help)
                  ->type_size(1)
                  ->expected(1)
                  ->allow_extra_args(false)
                  ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
                  ->type_name("TEXT"));
}

Option* Command::add_output(std::string& path, const std::string& help) {
  return add_option("-o,--output,--save", path, help)->type_name("FILE");
}
Option* Command::add_save_output(std::string& path, const std::string& help) {
  return add_option("--save,-o,--output", path, help)->type_name("FILE");
}

bool Command::has_option(const std::string& name) const {
  return app_->get_option_no_throw(name) != nullptr;
}
Option* Command::get_option(const std::string& name) { return keep(app_->get_option(name)); }
void Command::remove_option(const std::string& name) {
  app_->remove_option(app_->get_option(name));
}
size_t Command::count(const std::string& name) const { return app_->count(name); }

void Command::set_version(const std::function<std::string()>& text) {
  app_->set_version_flag("--version", text);
}
void Command::footer(const std::string& text) { app_->footer(text); }
void Command::allow_one_subcommand() { app_->require_subcommand(0, 1); }
void Command::after_parsing(const std::function<void()>& f) {
  after_parsing_.push_back(f);
  app_->parse_complete_callback([this] {
    for (const auto& check : after_parsing_) check();
  });
}
void Command::callback(const std::function<void()>& f) { app_->callback(f); }

std::vector<std::string> Command::given() const {
  std::vector<std::string> names;
  for (const CLI::Option* option : app_->get_options()) {
    if (option->count() > 0) names.push_back(option->get_name());
  }
  return names;
}

bool Command::has_argument(const std::string& beginning) const {
  return std::ranges::any_of(app_->get_options(), [&](const CLI::Option* option) {
    return std::ranges::any_of(option->results(), [&](const std::string& argument) {
      return argument.starts_with(beginning);
    });
  });
}

std::vector<FileArgument> Command::file_arguments() const {
  constexpr std::array kTypes = {
      "FILE", "DIR", "IN", "OUT.gguf", "SAFETENSORS", "SNAPSHOT", "suffix|MODEL|off"};
  std::vector<FileArgument> all;
  for (const CLI::Option* option : app_->get_options()) {
    if (std::ranges::find(kTypes, type_of(*option)) == kTypes.end()) continue;
    for (const std::string& path : option->results()) all.push_back({option->get_name(), path});
  }
  return all;
}

std::string Command::name() const { return app_->get_name(); }
std::string Command::help() const {
  const CLI::App* const parent = app_->get_parent();
  return app_->help(parent == nullptr ? "" : parent->get_name());
}
std::vector<Command*> Command::subcommands() {
  std::vector<Command*> all;
  for (const auto& sub : subcommands_) all.push_back(sub.get());
  return all;
}
bool Command::subcommand_given() const { return !app_->get_subcommands().empty(); }

std::optional<std::string> Command::run(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
    if (!subcommand_given()) return app_->help();
    return std::nullopt;
  } catch (const CLI::CallForHelp&) {
    return app_->help();
  } catch (const CLI::CallForVersion&) {
    return app_->version() + "\n";
  } catch (const CLI::RequiredError& e) {
    throw UsageError(usage_text(*app_, missing_text(*app_, e.what())));
  } catch (const CLI::ParseError& e) {
    throw UsageError(usage_text(*app_, e.what()));
  } catch (const UsageError& e) {
    throw UsageError(usage_text(*app_, e.what()));
  }
}

}  // namespace stet::tool
