// What the kinds of `stet bench` share: times, medians, made-up prompts, and figures of the process
// and of a session's state.
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

// The most memory that this process has had resident; 0 where the system does not say.
size_t peak_bytes();

// Saving the session, restoring it with a next token, forking it: medians. The file goes to the
// system's temporary directory and is removed.
Json state_figures(Session& session, const SessionOptions& options, int repeat);

}  // namespace stet::tool
