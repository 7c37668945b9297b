// The clock that times requests and computation.
#pragma once

#include <chrono>

namespace stet {

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace stet
