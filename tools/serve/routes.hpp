// The routes of the server: an endpoint for each address.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tools/serve/body_fields.hpp"

namespace stet::serve {

using Parts = std::vector<std::string>;  // the values of {id} and {other} in an address

// The function that answers at an address, and the fields of its JSON body.
struct Endpoint {
  using Answer = std::function<Response(Service&, const Request&, const Parts&)>;

  // An endpoint without fields.
  template <class Function>
  Endpoint(Function answer_) : answer(answer_) {}  // NOLINT(google-explicit-constructor)
  Endpoint(Answer answer_, std::vector<FieldSchema> fields_)
      : answer(std::move(answer_)), fields(std::move(fields_)) {}

  Answer answer;
  std::vector<FieldSchema> fields;
};

template <class Body>
Endpoint endpoint(const BodyFields<Body>& fields,
                  Response (*answer)(Service&, const Request&, Body)) {
  return {[fields, answer](Service& service, const Request& request, const Parts&) {
            return answer(service, request,
                          fields.read(parse_body(request.body), {service, request, nullptr}));
          },
          fields.schema()};
}

NodePtr node_of(Service& service, const Request& request, const Parts& parts);  // of {id}

// An optional body may be left out if all its fields are optional.
enum class Presence : uint8_t { required, optional };

// Returns an endpoint for the state that an address names.
template <class Body>
Endpoint state_endpoint(const BodyFields<Body>& fields,
                        Response (*answer)(Service&, const Request&, const NodePtr&, Body),
                        Presence presence = Presence::required) {
  return {[fields, answer, presence](Service& service, const Request& request, const Parts& parts) {
            const NodePtr node = node_of(service, request, parts);
            const bool none = presence == Presence::optional && request.body.empty();
            return answer(service, request, node,
                          fields.read(none ? Json::object() : parse_body(request.body),
                                      {service, request, node}));
          },
          fields.schema()};
}

struct Route {
  const char* method;
  const char* path;  // "/v1/states/{id}/fork"
  const char* summary;
  Endpoint endpoint;
  const char* query = "";  // query parameters: "name:type name:type"
  Lane lane = Lane::work;
  bool control = false;     // needs no API key
  bool takes_file = false;  // its body is not JSON
  bool takes_rest = false;  // its last variable may contain slashes
};
const std::vector<Route>& routes();
// Returns the route of a request, or null for the page. Throws a RequestError: 404, 405, or 400 for
// an unknown query parameter.
const Route* find_route(const Request& request, Parts* parts);
bool is_control(const Request& request);
Json openapi();

// openai.cpp, completions.cpp, embeddings.cpp, responses.cpp, anthropic.cpp
Response models(Service&, const Request&, const Parts&);
Response model(Service&, const Request&, const Parts&);
Endpoint embeddings();
Endpoint chat_completions();
Endpoint completions();
Endpoint create_response();
Response get_response(Service&, const Request&, const Parts&);
Response delete_response(Service&, const Request&, const Parts&);
Endpoint messages();
Endpoint count_tokens();

// states_api.cpp
Response list_states(Service&, const Request&, const Parts&);
Endpoint create_state();
Response get_state(Service&, const Request&, const Parts&);
Endpoint patch_state();
Response delete_state(Service&, const Request&, const Parts&);
Endpoint fork_state();
Endpoint rewind_state();
Endpoint prune_state();
Endpoint edit_state();
Endpoint verify_state();

// states_continue.cpp
Endpoint continue_state();

// transfer.cpp
Response upload_state(Service&, const Request&, const Parts&);
Response download_state(Service&, const Request&, const Parts&);

// state_views.cpp
Response state_tokens(Service&, const Request&, const Parts&);
Response state_top(Service&, const Request&, const Parts&);
Response state_kv(Service&, const Request&, const Parts&);
Response diff_states(Service&, const Request&, const Parts&);
// Returns a request's ?name=, which must be within [min, max], or `fallback`.
int64_t query_integer(const Request& request, const std::string& name, int64_t fallback,
                      int64_t min, int64_t max);
std::vector<int64_t> attention_layers(const KvShape& shape);
// Returns a request's ?layer=, or the first layer with attention. Throws a RequestError for a layer
// without attention.
int64_t query_attention_layer(const Request& request, const KvShape& shape);

// activations.cpp
Response state_attention(Service&, const Request&, const Parts&);
Response state_lens(Service&, const Request&, const Parts&);
Response state_norms(Service&, const Request&, const Parts&);
Response patch_states(Service&, const Request&, const Parts&);
// Returns the log-probability of each token but the first, given those before it.
std::vector<double> token_logprobs(Service& service, const Caller& caller,
                                   std::span<const int32_t> ids);
// Appends tokens to a session. Returns the log-probability of each, and the `top` most likely
// tokens at its position. The first token of a session has none.
std::vector<std::optional<TokenLogprob>> process_scored(Service& service, const Caller& caller,
                                                        Session& session,
                                                        std::span<const int32_t> ids, size_t top);

// tokens.cpp
Endpoint tokenize();
Endpoint detokenize();
Endpoint apply_template();

// health.cpp
Response health(Service&, const Request&, const Parts&);
Response ready(Service&, const Request&, const Parts&);
Response status(Service&, const Request&, const Parts&);
Response metrics(Service&, const Request&, const Parts&);
Response openapi_page(Service&, const Request&, const Parts&);
Response page(Service&, const Request&, const Parts&);

// Used by several endpoints.
int64_t now();
Json usage_json(const Usage& usage, size_t drawn);

}  // namespace stet::serve
