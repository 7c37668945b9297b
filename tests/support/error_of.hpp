// Turns the Error that a call throws into text to compare. Other exceptions pass through.
#pragma once

#include <string>

#include "stet/base/error.hpp"

namespace stet::test {

inline constexpr const char* kNoError = "no error";

// Returns "kind: text" of the Error that `call` throws, or "no error".
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

// Returns the text without its kind.
template <class Call>
std::string message_of(const Call& call) {
  const std::string error = error_of(call);
  return error == kNoError ? error : error.substr(error.find(": ") + 2);
}

// Returns the text of an Error of this kind; an Error of another kind keeps its "kind: " in front.
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
