#include "tools/command/streams.hpp"

#include <fcntl.h>

#include <cstdio>
#include <cstdlib>

#include "stet/base/error.hpp"

namespace stet::tool {

void open_standard_streams() {
  for (int fd = 0; fd < 3; ++fd) {
    if (fcntl(fd, F_GETFD) == -1) (void)!open("/dev/null", O_RDONLY);
  }
}

bool read_line(std::string& line) {
  char* text = nullptr;
  size_t room = 0;
  const ssize_t size = ::getline(&text, &room, stdin);
  if (size >= 0) line.assign(text, static_cast<size_t>(size) - (text[size - 1] == '\n' ? 1 : 0));
  std::free(text);
  return size >= 0;
}

void write_error_style(std::string_view sequence) {
  (void)!std::fwrite(sequence.data(), 1, sequence.size(), stderr);
  std::fflush(stderr);
}

void write_error(std::string_view text) { write_error_style(for_terminal(text)); }

void rewrite_line(std::string_view text) { write_error_style("\r\033[K" + for_terminal(text)); }

}  // namespace stet::tool
