// Throws io Errors for failed system calls.
#pragma once

#include <string>
#include <system_error>

#include "stet/base/error.hpp"

namespace stet {

// Throws an io Error with the system's message. `error` is errno's value.
[[noreturn]] inline void throw_io(const std::string& path, const std::string& expected, int error) {
  throw Error(ErrorKind::io, path, "", expected, std::generic_category().message(error));
}

}  // namespace stet
