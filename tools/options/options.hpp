// Describes the command line: subcommands, their options, and the values that these accept.
// CLI11 parses it and is included by the files of this folder alone, since it takes longer to
// compile than a subcommand does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace stet::tool {

// Thrown when the command line is at fault: exit status 2. what() is the whole message.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws a UsageError: "OPTION: expected EXPECTED, found FOUND". `option` as it is typed.
[[noreturn]] void usage_error(const std::string& option, const std::string& expected,
                              const std::string& found);
// Throws a UsageError: "NAMES is required".
[[noreturn]] void required_error(const std::string& names);
// Throws a UsageError of this text, a sentence without a point.
[[noreturn]] void usage_error(const std::string& text);

// A test of an option's value.
struct Check {
  // Returns "" for a value that is accepted, which it may write in another way, or what is wrong.
  std::function<std::string(std::string&)> fault;
  std::string
      values;  // the accepted words, joined by '|', for completion; "" where they are no list
};

// Accepts these words alone; the fault of another names the word that it resembles.
Check one_of(std::vector<std::string> words);
// Accepts a decimal integer from min to max. (The library alone would take any base, and wrap
// around.)
Check integer(uint64_t min, uint64_t max);
// Accepts a name that is not empty: an output without one would be computed and lost.
Check named();

// An option or flag of a Command, which owns it. The functions that change it return it.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option(const Option&) = delete;
  Option& operator=(const Option&) = delete;

  Option* type_name(const std::string& name);  // as help shows it: "FILE"
  Option* group(const std::string& name);      // the heading of help under which it stands
  Option* description(const std::string& text);
  Option* check(Check check);
  Option* required();
  Option* needs(const Option* other);
  Option* needs(const std::string& name);
  Option* excludes(const Option* other);
  Option* excludes(const std::string& name);
  Option* delimiter(char c);             // splits a value into several
  Option* allow_extra_args(bool allow);  // whether a list takes the arguments that follow, too
  Option* show_default();                // in help

  size_t count() const;          // how often it was given
  std::string get_name() const;  // "--prompt"

 private:
  friend class Command;
  CLI::Option* option_;
};

// The whole command line, or a subcommand of it. What the options write to must outlive it.
class Command {
 public:
  Command(const std::string& description, const std::string& name);
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  Command* add_subcommand(const std::string& name, const std::string& description);
  // T: std::string, int, int64_t, uint64_t, double, an optional of one of these, or a vector
  // (options.cpp has the list). Without dashes the name is that of a positional argument.
  template <class T>
  Option* add_option(const std::string& names, T& value, const std::string& help);
  // Calls `take` with the value while the command line is parsed.
  Option* add_option_function(const std::string& names,
                              const std::function<void(const std::string&)>& take,
                              const std::string& help);
  Option* add_flag(const std::string& names, bool& value, const std::string& help);
  // Adds an option whose values are texts: each argument is one, however it is written.
  Option* add_texts(const std::string& names, std::vector<std::string>& texts,
                    const std::string& help);
  // -o, --output, --save: the snapshot that a subcommand writes. Who adds it tests the path with
  // check_writable() before computing.
  Option* add_output(std::string& path, const std::string& help);
  // The same where a subcommand need not write one: help and errors call it --save.
  Option* add_save_output(std::string& path, const std::string& help);

  bool has_option(const std::string& name) const;
  Option* get_option(const std::string& name);  // which there is
  void remove_option(const std::string& name);
  size_t count(const std::string& name) const;  // how often it was given

  void set_version(const std::function<std::string()>& text);  // --version prints it
  void footer(const std::string& text);                        // the end of its help
  void allow_one_subcommand();
  // Called once all options of the command are known, before its callback.
  void after_parsing(const std::function<void()>& f);
  void callback(const std::function<void()>& f);  // runs the subcommand

  std::string name() const;
  std::string help() const;
  std::vector<Command*> subcommands();  // in the order in which they were added
  bool subcommand_given() const;

  // Parses the words of a command line, the program's name first, and runs the subcommand named.
  // Returns the text to print where help or the version was asked for. Throws a UsageError, and
  // whatever the subcommand throws.
  std::optional<std::string> run(int argc, char** argv);

  const CLI::App& library() const { return *app_; }  // for what help.hpp makes of it

 private:
  explicit Command(CLI::App* app);
  Option* keep(CLI::Option* option);

  struct Root;
  std::unique_ptr<Root> root_;  // null in a subcommand
  CLI::App* app_;
  std::vector<std::unique_ptr<Option>> options_;
  std::vector<std::unique_ptr<Command>> subcommands_;
};

}  // namespace stet::tool
