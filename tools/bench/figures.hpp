// Shared by the kinds of `stet bench`: times, medians, made-up prompts, memory of the process, and
// times of a session's state.
#pragma once

#include "tools/command/command.hpp"

namespace stet::tool {

template <class F>
double time_of(F f) {
  const double start = seconds();
  f();
  return seconds() - start;
}

double median(std::vector<double> x);

std::vector<int32_t> some_tokens(const Model& model, int64_t n);

// Returns the peak of the process's resident memory in bytes, or 0 if the system does not report
// it.
size_t peak_bytes();

// Returns the median times for saving the session, restoring it with a next token, and forking it.
// The file is in the system's temporary directory and is removed.
Json state_figures(Session& session, const SessionOptions& options, int repeat);

}  // namespace stet::tool
