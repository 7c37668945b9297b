#include "tools/command/streams.hpp"

#include <fcntl.h>

#include <cstdio>

#include "stet/base/error.hpp"

namespace stet::tool {

void open_standard_streams() {
  for (int fd = 0; fd < 3; ++fd) {
    if (fcntl(fd, F_GETFD) == -1) (void)!open("/dev/null", O_RDONLY);
  }
}

void write_error_style(std::string_view sequence) {
  (void)!std::fwrite(sequence.data(), 1, sequence.size(), stderr);
  std::fflush(stderr);
}

void write_error(std::string_view text) { write_error_style(for_terminal(text)); }

void rewrite_line(std::string_view text) { write_error_style("\r\033[K" + for_terminal(text)); }

}  // namespace stet::tool
