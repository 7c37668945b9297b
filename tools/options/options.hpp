// Describes the command line: subcommands, their options, and the values that these accept.
// Only the files of this folder include CLI11, which parses the command line, since it takes longer
// to compile than a subcommand does.
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

// Thrown for an error in the command line: exit status 2. what() is the whole message.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws a UsageError: "OPTION: expected EXPECTED, found FOUND". `option` is written as typed.
[[noreturn]] void usage_error(const std::string& option, const std::string& expected,
                              const std::string& found);
// Throws a UsageError: "NAMES is required".
[[noreturn]] void required_error(const std::string& names);
// Throws a UsageError with this text, a sentence without its full stop.
[[noreturn]] void usage_error(const std::string& text);

// A test of an option's value.
struct Check {
  // Returns "" and may rewrite the value, or returns what is wrong with it.
  std::function<std::string(std::string&)> fault;
  std::string values;  // the accepted words, joined by '|', for completion; "" if there is no list
};

// Accepts only these words. The error suggests the nearest one.
Check one_of(std::vector<std::string> words);
// Accepts a decimal integer from min to max. CLI11 alone would take any base, and wrap around.
Check integer(uint64_t min, uint64_t max);
// Accepts any name that is not empty.
Check named();

// An option or flag of a Command, which owns it. The functions that change it return it.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option(const Option&) = delete;
  Option& operator=(const Option&) = delete;

  // Sets the form that help shows: "FILE". An option of type FILE or DIR refuses an empty name.
  Option* type_name(const std::string& name);
  Option* group(const std::string& name);  // its heading in the help
  Option* description(const std::string& text);
  Option* check(Check check);
  Option* required();
  Option* needs(const Option* other);
  Option* needs(const std::string& name);
  Option* excludes(const Option* other);
  Option* excludes(const std::string& name);
  Option* delimiter(char c);             // splits a value at `c`
  Option* allow_extra_args(bool allow);  // a list also takes the arguments that follow
  Option* show_default();                // in help

  size_t count() const;          // number of times it was given
  std::string get_name() const;  // "--prompt"

 private:
  friend class Command;
  CLI::Option* option_;
};

// An argument that names a file or a directory.
struct FileArgument {
  std::string option, path;  // "--model", "DIR"; a positional argument has its name alone
};

// The whole command line, or a subcommand. The variables that options write to must outlive it.
class Command {
 public:
  Command(const std::string& description, const std::string& name);
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  Command* add_subcommand(const std::string& name, const std::string& description);
  // Adds a subcommand that this build leaves out. It takes any arguments, and throws an unsupported
  // Error that says what build has it.
  void add_absent(const std::string& name, const std::string& description,
                  const std::string& needed);
  // Adds an option. T is a string, int, int64_t, uint64_t, double, an optional of one of these, or
  // a vector (list in options.cpp). A name without dashes is that of a positional argument.
  template <class T>
  Option* add_option(const std::string& names, T& value, const std::string& help);
  // Calls `take` with the value while the command line is parsed.
  Option* add_option_function(const std::string& names,
                              const std::function<void(const std::string&)>& take,
                              const std::string& help);
  Option* add_flag(const std::string& names, bool& value, const std::string& help);
  // Adds an option that can be repeated; each argument is one text.
  Option* add_texts(const std::string& names, std::vector<std::string>& texts,
                    const std::string& help);
  // Adds -o, --output and --save for a subcommand that always writes a snapshot. The caller tests
  // the path with check_writable() before it computes.
  Option* add_output(std::string& path, const std::string& help);
  // Adds the same options for a subcommand that writes a snapshot only on request. Help and errors
  // call the option --save.
  Option* add_save_output(std::string& path, const std::string& help);

  bool has_option(const std::string& name) const;
  Option* get_option(const std::string& name);  // must exist
  void remove_option(const std::string& name);
  size_t count(const std::string& name) const;  // number of times it was given

  void set_version(const std::function<std::string()>& text);  // printed by --version
  void footer(const std::string& text);                        // printed after the help
  void allow_one_subcommand();
  // Adds a function that is called after parsing, before the callback.
  void after_parsing(const std::function<void()>& f);
  void callback(const std::function<void()>& f);  // sets the function that runs the subcommand

  // Returns the names of the options that were given, as "--prompt".
  std::vector<std::string> given() const;
  // Returns true if an argument of an option, or a positional one, begins with this text.
  bool has_argument(const std::string& beginning) const;

  // Returns the arguments of options whose type is a file or a directory, and of positional ones.
  std::vector<FileArgument> file_arguments() const;

  std::string name() const;
  std::string help() const;
  std::vector<Command*> subcommands();  // in the order in which they were added
  bool subcommand_given() const;

  // Parses a command line, whose first word is the program's name, and runs its subcommand. Returns
  // the text to print for help and --version. Throws a UsageError, and any exception of the
  // subcommand.
  std::optional<std::string> run(int argc, char** argv);

  const CLI::App& library() const { return *app_; }  // the functions of help.hpp use it

 private:
  explicit Command(CLI::App* app);
  Option* keep(CLI::Option* option);

  struct Root;
  std::unique_ptr<Root> root_;  // null in a subcommand
  CLI::App* app_;
  std::vector<std::unique_ptr<Option>> options_;
  std::vector<std::unique_ptr<Command>> subcommands_;
  std::vector<std::function<void()>> after_parsing_;
};

}  // namespace stet::tool
