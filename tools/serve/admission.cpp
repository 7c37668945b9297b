#include "tools/serve/admission.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tools/serve/routes.hpp"

namespace stet::serve {
namespace {

constexpr size_t kMostJson = size_t{16} << 20;
constexpr size_t kMostFile = size_t{256} << 20;

// Throws for a Host that is not a name of this server, which prevents DNS rebinding.
void check_host(const Request& request, const AdmissionRules& rules) {
  const std::string name = host_name(request.host);
  const bool known = is_loopback(name) || name == lower_case(rules.host) ||
                     std::find(rules.hosts.begin(), rules.hosts.end(), name) != rules.hosts.end();
  if (known || (!is_loopback(rules.host) && rules.hosts.empty())) return;
  if (request.host.empty() && request.path == "/health") return;
  throw RequestError(
      403, "unknown_host",
      fmt::format("{} is not a name of this server; --allow-host adds one",
                  request.host.empty() ? "an empty Host" : printable(request.host, 60)));
}

// Throws for pages of other origins. `null` is the origin of any page that hides its own.
void check_origin(Request& request, const AdmissionRules& rules) {
  if (request.origin.empty()) return;
  if (request.origin == "http://" + request.host || request.origin == "https://" + request.host)
    return;
  const auto allowed = [&](const char* what) {
    return std::find(rules.origins.begin(), rules.origins.end(), what) != rules.origins.end();
  };
  const bool may = request.origin != "null" && (allowed("*") || allowed(request.origin.c_str()));
  if (!may)
    throw RequestError(
        403, "foreign_origin",
        fmt::format("pages of {} may not use this server; --allow-origin allows them",
                    printable(request.origin, 60)));
  request.reply_headers = {{"Access-Control-Allow-Origin", request.origin}, {"Vary", "Origin"}};
}

// Throws for other types than JSON. Pages can send text, forms and untyped bodies without a
// preflight.
void check_type(const Request& request) {
  std::string type = request.content_type.substr(0, request.content_type.find(';'));
  while (!type.empty() && type.back() == ' ') type.pop_back();
  if (lower_case(type) != "application/json")
    throw RequestError(415, "unsupported_media_type",
                       "send Content-Type: application/json" +
                           (type.empty() ? "" : ", not " + printable(type, 60)));
}

// Returns true if a browser asks which requests another page may send.
bool is_preflight(const Request& request) {
  return request.method == "OPTIONS" && !request.reply_headers.empty();
}

Response preflight() {
  Response r;
  r.status = 204;
  r.headers = {{"Access-Control-Allow-Methods", "GET, POST, PATCH, DELETE"},
               {"Access-Control-Allow-Headers",
                "Authorization, Content-Type, X-API-Key, Anthropic-Version, Anthropic-Beta, *"},
               {"Access-Control-Max-Age", "600"}};
  return r;
}

}  // namespace

bool is_loopback(const std::string& host) {
  return host == "127.0.0.1" || host == "localhost" || host == "::1";
}

std::string lower_case(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return text;
}

std::string host_name(const std::string& host) {
  const bool bracket = host.starts_with('[');
  const size_t end = bracket ? host.find(']') : std::min(host.find(':'), host.size());
  if (end == std::string::npos) return "";
  const std::string_view port = std::string_view(host).substr(end + (bracket ? 1 : 0));
  const bool digits = port.find_first_not_of("0123456789", 1) == std::string_view::npos;
  if (!port.empty() && (port[0] != ':' || !digits)) return "";
  return lower_case(host.substr(bracket ? 1 : 0, end - (bracket ? 1 : 0)));
}

Admission admit(Service& service, Request& request, const AdmissionRules& rules) {
  check_host(request, rules);
  check_origin(request, rules);
  if (is_preflight(request)) return {Lane::at_once, 0, [](const Request&) { return preflight(); }};
  if (rules.client && !is_control(request)) {
    request.client = rules.client(request.authorization);
    if (request.client.empty())
      throw RequestError(401, "invalid_api_key",
                         "the API key is missing or is not one of this server's");
  }
  Parts parts;
  const Route* const route = find_route(request, &parts);
  if (route == nullptr)
    return {Lane::beside, 0, [&service](const Request& r) { return page(service, r, {}); }};
  if (request.has_body && !route->takes_file) check_type(request);
  return {route->lane, route->takes_file ? kMostFile : kMostJson,
          [&service, route, parts](const Request& r) {
            return route->endpoint.answer(service, r, parts);
          }};
}

}  // namespace stet::serve
