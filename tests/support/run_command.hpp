// Runs the built `stet` as a user does, and says what came of it.
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

// A run of the command with standard streams from and to files.
class CommandRun {
 public:
  // `out` names where standard output goes; "" closes it.
  CommandRun(const Args& args, const std::string& in, const std::string& out,
             const std::string& err);
  void send(int signal) const;
  // Waits for its end. Returns the status as Outcome has it.
  int wait() const;

 private:
  pid_t pid_;
};

// Runs the command to its end with `input` on standard input.
Outcome run_stet(const Args& args, const std::string& input = "");

}  // namespace stet::test
