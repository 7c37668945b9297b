// Throws io Errors for failed system calls.
#pragma once

#include <string>
#include <system_error>

#include "stet/base/error.hpp"

namespace stet {

// Throws an io Error of the sentence `what` and the system's message. `error` is errno's value.
[[noreturn]] inline void throw_io(const std::string& path, const std::string& what, int error) {
  throw Error(ErrorKind::io, path, "", "", what + ": " + std::generic_category().message(error));
}

}  // namespace stet
