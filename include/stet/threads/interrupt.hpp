// Interrupts: a thread that waits for a long call, such as a forward pass, can end it early.
#pragma once

#include <exception>

#include "stet/api.h"

namespace stet {

// A callback of the program. A pass that calls it ends if it returns a nonzero value.
struct Interrupt {
  int (*ask)(void* context) = nullptr;
  void* context = nullptr;
  int between_ms =
      5;  // least time between two calls of `ask`; 0: it is called at every opportunity
};
// Sets the interrupt of the calling thread and returns the previous one. Passes that this thread
// starts call `ask` on this thread: once at their start, then between pieces of work. Saving,
// restoring and checking a snapshot call it at their start, then between blocks. Loading, packing
// and converting a model call it between matrices. A null `ask` removes it. `ask` must not throw or
// begin a pass.
STET_API Interrupt set_interrupt(const Interrupt& interrupt) noexcept;

// Thrown by a call that was ended. The call has changed neither its sessions nor a file.
class STET_API Interrupted : public std::exception {
 public:
  const char* what() const noexcept override;
};

}  // namespace stet
