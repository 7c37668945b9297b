// Who may ask, and what: decided by the head of a request alone, before its body is read.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/serve/http.hpp"

namespace stet::serve {

struct AdmissionRules {
  std::string host;                  // where the server listens
  std::vector<std::string> hosts;    // further names under which it is reached
  std::vector<std::string> origins;  // of pages of others that may ask; "*": any
  // The client of an Authorization, "" for a wrong one; null where no key is needed.
  std::function<std::string(const std::string& authorization)> client;
};

bool is_loopback(const std::string& host);

// Throws a RequestError: 403 for another name or page, 401 for a wrong key, 404 and 405 for an
// address that is none, 415 for a body of a type that the address does not take.
Admission admit(Request& request, const AdmissionRules& rules);

// Whether a request asks what another page may send; is answered with that.
bool is_preflight(const Request& request);
Response preflight();

}  // namespace stet::serve
