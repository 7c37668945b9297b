// Runs the built `stet` as a user does, and returns its status and output.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "tests/support/files.hpp"

namespace stet::test {

using Args = std::vector<std::string>;

struct Outcome {
  int status = 0;  // exit status, or minus the signal that ended it
  std::string out, err;
};

// A run of the command whose standard streams are files.
class CommandRun {
 public:
  // Starts the command. `out` names the file for standard output; "" closes standard output.
  CommandRun(const Args& args, const std::string& in, const std::string& out,
             const std::string& err);
  void send(int signal) const;
  // Waits for the end of the command. Returns its status as in Outcome.
  int wait() const;

 private:
  pid_t pid_;
};

Args operator+(Args a, const Args& b);

// Runs the command to its end with `input` as standard input.
Outcome run_stet(const Args& args, const std::string& input = "");

// Runs the command and expects status 0.
Outcome succeed(const Args& args, const std::string& input = "");

// Runs the command and expects this status, no output, and an error of one line. Returns the line
// without "stet: ".
std::string failure(const Args& args, int status = 1, const std::string& input = "");

}  // namespace stet::test
