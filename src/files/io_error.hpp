// The io Error of a system call that failed.
#pragma once

#include <string>
#include <system_error>

#include "stet/base/error.hpp"

namespace stet {

// `error` is errno's.
[[noreturn]] inline void throw_io(const std::string& path, const std::string& expected, int error) {
  throw Error(ErrorKind::io, path, "", expected, std::generic_category().message(error));
}

}  // namespace stet
