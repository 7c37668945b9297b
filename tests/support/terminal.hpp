// Runs the built `stet` on a pseudo-terminal, as a user does who types and reads.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

namespace stet::test {

class Terminal {
 public:
  using Environment = std::vector<std::pair<std::string, std::string>>;

  // Starts the command. `home` is the directory in which it keeps its history.
  Terminal(const std::vector<std::string>& args, const std::string& home,
           const Environment& environment = {}) {
    std::vector<std::string> words = {STET_BUILD "/tools/stet"};
    words.insert(words.end(), args.begin(), args.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    winsize size{};
    size.ws_col = 200;
    size.ws_row = 50;
    pid_ = ::forkpty(&fd_, nullptr, nullptr, &size);
    if (pid_ == 0) {
      ::setenv("HOME", home.c_str(), 1);
      ::setenv("TERM", "xterm", 1);
      ::unsetenv("STET_HISTORY");
      ::unsetenv("NO_COLOR");
      for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    // Some C libraries declare pidfd_open for C only.
    process_ = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal() {
    if (!ended_) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(process_);
    if (fd_ >= 0) ::close(fd_);
  }

  void type(const std::string& keys) const {
    ASSERT_EQ(::write(fd_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  // Reads until `text` appears on the screen after the text of the previous call. Escape sequences
  // are ignored.
  void until(const std::string& text) {
    size_t found;
    while ((found = plain(shown_).find(text, seen_)) == std::string::npos && read_more()) {
    }
    ASSERT_NE(found, std::string::npos)
        << "waited for \"" << text << "\", saw: " << plain(shown_).substr(seen_);
    seen_ = found + text.size();
  }
  // Reads until something other than white space appears on the screen.
  void until_anything() {
    const auto there = [&] { return plain(shown_).find_first_not_of(" \r\n", seen_); };
    while (there() == std::string::npos && read_more()) {
    }
    ASSERT_NE(there(), std::string::npos) << "waited for anything";
  }
  void send(int signal) const { ::kill(pid_, signal); }
  // Closes the terminal, as closing its window does.
  void hang_up() {
    ::close(fd_);
    fd_ = -1;
  }
  // Returns all output so far, including escape sequences.
  const std::string& shown() const { return shown_; }

  // Returns the exit status, minus the number of the signal that ended the command, or -1000 if it
  // does not end.
  int wait() {
    while (read_more()) {
    }
    pollfd ends{process_, POLLIN, 0};
    if (::poll(&ends, 1, kPatience) != 1) return -1000;
    int status = 0;
    ended_ = ::waitpid(pid_, &status, 0) == pid_;
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  static constexpr int kPatience = 60000;  // milliseconds until a test fails

  // Reads once. Returns false at the end of the output or after the timeout.
  bool read_more() {
    pollfd p{fd_, POLLIN, 0};
    if (fd_ < 0 || ::poll(&p, 1, kPatience) <= 0) return false;
    char buffer[4096];
    const ssize_t n = ::read(fd_, buffer, sizeof buffer);
    if (n > 0) shown_.append(buffer, static_cast<size_t>(n));
    return n > 0;
  }
  static std::string plain(const std::string& text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\033') {
        out += text[i];
        continue;
      }
      if (i + 1 < text.size() && text[i + 1] == '[') {
        i += 2;
        while (i < text.size() && (text[i] < '@' || text[i] > '~')) ++i;
      } else {
        ++i;
      }
    }
    return out;
  }

  int fd_ = -1, process_ = -1;
  pid_t pid_ = 0;
  bool ended_ = false;
  std::string shown_;
  size_t seen_ = 0;  // length of plain(shown_) up to the last match
};

}  // namespace stet::test
