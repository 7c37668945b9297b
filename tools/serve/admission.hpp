// Who may ask, and what: decided by the head of a request alone, before its body is read.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/serve/service.hpp"

namespace stet::serve {

struct AdmissionRules {
  std::string host;                  // where the server listens
  std::vector<std::string> hosts;    // further names under which it is reached
  std::vector<std::string> origins;  // of pages of others that may ask; "*": any
  // The client of an Authorization, "" for a wrong one; null where no key is needed.
  std::function<std::string(const std::string& authorization)> client;
};

bool is_loopback(const std::string& host);

// Decides who answers. Throws a RequestError: 403 for another name or page, 401 for a wrong key,
// 404 and 405 for an address that is none, 400 for a parameter that it does not know, 415 for a
// body of a type that it does not take.
Admission admit(Service& service, Request& request, const AdmissionRules& rules);

}  // namespace stet::serve
