// The Error that a call throws, as text to compare. Any other exception passes through.
#pragma once

#include <string>

#include "stet/base/error.hpp"

namespace stet::test {

inline constexpr const char* kNoError = "no error";

// "kind: text".
template <class Call>
std::string error_of(const Call& call) {
  static constexpr const char* kKinds[] = {"io",       "format",   "unsupported",
                                           "mismatch", "capacity", "argument"};
  try {
    call();
  } catch (const stet::Error& error) {
    return std::string(kKinds[static_cast<size_t>(error.kind)]) + ": " + error.what();
  }
  return kNoError;
}

// The text alone.
template <class Call>
std::string message_of(const Call& call) {
  const std::string error = error_of(call);
  return error == kNoError ? error : error.substr(error.find(": ") + 2);
}

// The text of an Error of this kind; of another, its kind too.
template <class Call>
std::string error_of(const Call& call, stet::ErrorKind kind) {
  stet::ErrorKind found = kind;
  const std::string message = message_of([&] {
    try {
      call();
    } catch (const stet::Error& error) {
      found = error.kind;
      throw;
    }
  });
  return found == kind ? message : "another kind of error: " + message;
}

}  // namespace stet::test
