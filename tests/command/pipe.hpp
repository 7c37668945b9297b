// A named pipe between a test and a running command.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

namespace stet::test {

class Pipe {
 public:
  explicit Pipe(std::string path) : path(std::move(path)) {
    if (::mkfifo(this->path.c_str(), 0600) != 0) std::abort();
    fd_ = ::open(this->path.c_str(), O_RDWR);
  }
  ~Pipe() {
    ::close(fd_);
    std::filesystem::remove(path);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  void write(const std::string& text) const {
    ASSERT_EQ(::write(fd_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  // Returns the next line without its end, or what arrived of it after a minute.
  std::string read_line() const {
    std::string line;
    pollfd ready{fd_, POLLIN, 0};
    for (char c = 0; ::poll(&ready, 1, 60000) == 1 && ::read(fd_, &c, 1) == 1 && c != '\n';)
      line += c;
    return line;
  }

  const std::string path;

 private:
  int fd_ = -1;
};

}  // namespace stet::test
