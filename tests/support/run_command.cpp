#include "tests/support/run_command.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

namespace stet::test {
namespace {

void redirect(int fd, const std::string& path, int flags) {
  ::close(fd);  // makes fd the lowest free descriptor
  if (!path.empty() && ::open(path.c_str(), flags, 0644) != fd) ::_exit(126);
}

}  // namespace

CommandRun::CommandRun(const Args& args, const std::string& in, const std::string& out,
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

void CommandRun::send(int signal) const { ::kill(pid_, signal); }

int CommandRun::wait() const {
  int status = 0;
  ::waitpid(pid_, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

Outcome run_stet(const Args& args, const std::string& input) {
  const TemporaryDirectory scratch;
  write_file(scratch / "in", input);
  const CommandRun run(args, scratch / "in", scratch / "out", scratch / "err");
  Outcome o;
  o.status = run.wait();
  o.out = read_text(scratch / "out");
  o.err = read_text(scratch / "err");
  return o;
}

Args operator+(Args a, const Args& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Outcome succeed(const Args& args, const std::string& input) {
  Outcome o = run_stet(args, input);
  EXPECT_EQ(o.status, 0) << o.err;
  return o;
}

std::string failure(const Args& args, int status, const std::string& input) {
  const Outcome o = run_stet(args, input);
  EXPECT_EQ(o.status, status) << o.err;
  EXPECT_EQ(o.out, "");
  EXPECT_TRUE(o.err.starts_with("stet: ")) << o.err;
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  EXPECT_TRUE(o.err.ends_with("\n")) << o.err;
  return o.err.size() < 7 ? o.err : o.err.substr(6, o.err.size() - 7);
}

}  // namespace stet::test
