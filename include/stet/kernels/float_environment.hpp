// A scope guard for the contract's floating-point environment.
#pragma once

#include "stet/kernels/kernels.hpp"

namespace stet {

// Sets the contract's floating-point environment in this thread and restores the previous one when
// destroyed.
class FloatEnvironment {
 public:
  FloatEnvironment() : previous_(enter_float_environment()) {}
  ~FloatEnvironment() { leave_float_environment(previous_); }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  uint64_t previous_;
};

}  // namespace stet
