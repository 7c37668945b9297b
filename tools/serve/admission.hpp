// Admission of requests by their head, before the body is read.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/serve/service.hpp"

namespace stet::serve {

struct AdmissionRules {
  std::string host;                  // the address on which the server listens
  std::vector<std::string> hosts;    // further names of the server, in lower case
  std::vector<std::string> origins;  // other origins whose pages may send requests; "*": any
  // Returns the client of an Authorization, "" for a wrong key. Null if no key is needed.
  std::function<std::string(const std::string& authorization)> client;
};

bool is_loopback(const std::string& host);
std::string lower_case(std::string text);  // of ASCII
// Returns the name in a Host field, "NAME", "NAME:PORT" or "[IPv6]:PORT", in lower case. Returns ""
// for other forms.
std::string host_name(const std::string& host);

// Returns how to answer the request: in which thread, with how large a body, and by which function.
// Throws a RequestError: 403 for another host or origin, 401 for a wrong key, 404 or 405 for an
// unknown address. A wrong query parameter gives 400, and a wrong type of body 415.
Admission admit(Service& service, Request& request, const AdmissionRules& rules);

}  // namespace stet::serve
