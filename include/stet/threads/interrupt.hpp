// How a thread that waits for a pass through the model can end it.
#pragma once

#include <exception>

#include "stet/api.h"

namespace stet {

// A question of the program's own: a nonzero answer ends the pass that asks it.
struct Interrupt {
  int (*ask)(void* context) = nullptr;
  void* context = nullptr;
};
// From here on the passes that this thread begins ask it, on this thread: as each begins, and then
// between pieces of its work, every few milliseconds at most. An `ask` of null ends that. It may
// not throw, and may not begin a pass. Returns the one before.
STET_API Interrupt set_interrupt(const Interrupt& interrupt) noexcept;

// Thrown by a call whose pass was ended: the sessions are as they were before that pass' call.
class STET_API Interrupted : public std::exception {
 public:
  const char* what() const noexcept override;
};

}  // namespace stet
