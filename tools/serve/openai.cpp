// OpenAI's models API.
#include <fmt/format.h>

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

Response models(Service& service, const Request&, const Parts&) {
  Json data = Json::array({model_json(service, service.name)});
  for (const std::string& alias : service.aliases) data.push_back(model_json(service, alias));
  return json_response({{"object", "list"}, {"data", data}});
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
