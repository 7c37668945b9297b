// Runs the built `stet` as a user does, and says what came of it.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "scratch.hpp"
#include "stet/files/file.hpp"

namespace stet::test {

using Args = std::vector<std::string>;

struct Outcome {
  int status = 0;  // exit status, or minus the signal that ended it
  std::string out, err;
};

class CommandRun {
 public:
  // `out` names where standard output goes; "" closes it.
  CommandRun(const Args& args, const std::string& in, const std::string& out,
             const std::string& err) {
    std::vector<std::string> words = {STET_BUILD "/tools/stet"};
    words.insert(words.end(), args.begin(), args.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ != 0) return;
    redirect(0, in, O_RDONLY);
    redirect(2, err, O_WRONLY | O_CREAT | O_TRUNC);
    redirect(1, out, O_WRONLY | O_CREAT | O_TRUNC);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  void send(int signal) const { ::kill(pid_, signal); }
  int wait() const {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  static void redirect(int fd, const std::string& path, int flags) {
    ::close(fd);  // so that it is the lowest free one
    if (!path.empty() && ::open(path.c_str(), flags, 0644) != fd) ::_exit(126);
  }
  pid_t pid_;
};

inline Outcome run_stet(const Args& args, const std::string& input = "") {
  const stet_test::ScratchDir scratch;
  stet_test::write_file(scratch / "in", input);
  const CommandRun run(args, scratch / "in", scratch / "out", scratch / "err");
  Outcome o;
  o.status = run.wait();
  o.out = read_text_file(scratch / "out", size_t{1} << 30);
  o.err = read_text_file(scratch / "err", size_t{1} << 30);
  return o;
}

}  // namespace stet::test
