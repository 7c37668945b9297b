// OpenAI's models API.
#include <fmt/format.h>

#include <algorithm>

#include "stet/base/error.hpp"
#include "tools/serve/routes.hpp"

namespace stet::serve {
namespace {

Json model_json(const Service& service, const std::string& name) {
  return {{"id", name},
          {"object", "model"},
          {"created", service.started},
          {"owned_by", "stet"},
          {"root", service.name},
          {"context_length", Session(service.model, service.session).capacity()},
          {"contract", contract_name(*service.model, service.session.compute.contract)},
          {"fingerprint", service.fingerprint}};
}

}  // namespace

// Lists the model under all its names. Anthropic's clients ask for pages of the list.
Response models(Service& service, const Request& request, const Parts&) {
  std::vector<std::string> names = {service.name};
  names.insert(names.end(), service.aliases.begin(), service.aliases.end());
  const auto first = std::ranges::find(names, request.query_or("after_id", ""));
  if (first != names.end()) names.erase(names.begin(), first + 1);
  names.erase(std::ranges::find(names, request.query_or("before_id", "")), names.end());
  const auto limit = static_cast<size_t>(query_integer(request, "limit", 1000, 1, 1000));
  const bool more = names.size() > limit;
  names.resize(std::min(names.size(), limit));
  Json data = Json::array();
  for (const std::string& name : names) data.push_back(model_json(service, name));
  Json page = {{"object", "list"}, {"data", data}};
  if (request.query.empty()) return json_response(page);
  page["has_more"] = more;
  page["first_id"] = names.empty() ? Json(nullptr) : Json(names.front());
  page["last_id"] = names.empty() ? Json(nullptr) : Json(names.back());
  return json_response(page);
}

Response model(Service& service, const Request&, const Parts& parts) {
  if (!service.is_name(parts[0]))
    throw RequestError(
        404, "model_not_found",
        fmt::format("/id: this server runs {}, not {}", service.name, printable(parts[0], 60)),
        "/id");
  return json_response(model_json(service, parts[0]));
}

}  // namespace stet::serve
