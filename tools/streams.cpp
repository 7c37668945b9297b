#include "tools/streams.hpp"

#include <fcntl.h>

#include <cstdio>

namespace stet::tool {

void open_standard_streams() {
  for (int fd = 0; fd < 3; ++fd) {
    if (fcntl(fd, F_GETFD) == -1) (void)!open("/dev/null", O_RDONLY);
  }
}

void write_error(std::string_view text) {
  (void)!std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace stet::tool
