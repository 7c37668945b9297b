// What the server answers: one function for each address.
#pragma once

#include <string>
#include <vector>

#include "tools/serve/service.hpp"

namespace stet::serve {

using Parts = std::vector<std::string>;  // of the address: those that a route calls {id}, {other}

struct Route {
  const char* method;
  const char* path;  // "/v1/states/{id}/fork"
  const char* summary;
  Response (*answer)(Service&, const Request&, const Parts&);
  const char* fields = "";  // of its body: "name:type", where "!" follows what must be there
  bool control = false;     // needs no API key
  const char* query = "";   // of its address, likewise
  Lane lane = Lane::work;
  bool takes_file = false;  // its body is no JSON
};
const std::vector<Route>& routes();
// The route that a request's method and path name; null for the page. Throws a RequestError (404,
// 405).
const Route* find_route(const Request& request, Parts* parts = nullptr);
// The answer of that route.
Response route(Service& service, const Request& request);
bool is_control(const Request& request);
Json openapi();

// openai.cpp, completions.cpp, embeddings.cpp, responses.cpp, anthropic.cpp
Response models(Service&, const Request&, const Parts&);
Response model(Service&, const Request&, const Parts&);
Response embeddings(Service&, const Request&, const Parts&);
Response chat_completions(Service&, const Request&, const Parts&);
Response completions(Service&, const Request&, const Parts&);
Response create_response(Service&, const Request&, const Parts&);
Response get_response(Service&, const Request&, const Parts&);
Response delete_response(Service&, const Request&, const Parts&);
Response messages(Service&, const Request&, const Parts&);
Response count_tokens(Service&, const Request&, const Parts&);

// states_api.cpp
Response list_states(Service&, const Request&, const Parts&);
Response create_state(Service&, const Request&, const Parts&);
Response get_state(Service&, const Request&, const Parts&);
Response patch_state(Service&, const Request&, const Parts&);
Response delete_state(Service&, const Request&, const Parts&);
Response continue_state(Service&, const Request&, const Parts&);
Response fork_state(Service&, const Request&, const Parts&);
Response rewind_state(Service&, const Request&, const Parts&);
Response prune_state(Service&, const Request&, const Parts&);
Response edit_state(Service&, const Request&, const Parts&);
Response verify_state(Service&, const Request&, const Parts&);

// transfer.cpp
Response upload_state(Service&, const Request&, const Parts&);
Response download_state(Service&, const Request&, const Parts&);

// look.cpp
Response state_tokens(Service&, const Request&, const Parts&);
Response state_top(Service&, const Request&, const Parts&);
Response state_kv(Service&, const Request&, const Parts&);
Response diff_states(Service&, const Request&, const Parts&);
// Of a request's ?name=, within [min, max].
int64_t query_integer(const Request& request, const std::string& name, int64_t fallback,
                      int64_t min, int64_t max);

// inside.cpp
Response state_attention(Service&, const Request&, const Parts&);
Response state_lens(Service&, const Request&, const Parts&);
Response state_norms(Service&, const Request&, const Parts&);
Response patch_states(Service&, const Request&, const Parts&);
// The log-probability of each token but the first one after those before it.
std::vector<double> token_logprobs(Service& service, const Caller& caller,
                                   std::span<const int32_t> ids);
// Processes tokens behind those of a session. Returns the log-probability of each, with the `top`
// likeliest ones in its place; none for the first token of all.
std::vector<std::optional<TokenLogprob>> process_scored(Service& service, const Caller& caller,
                                                        Session& session,
                                                        std::span<const int32_t> ids, size_t top);

// control.cpp
Response tokenize(Service&, const Request&, const Parts&);
Response detokenize(Service&, const Request&, const Parts&);
Response apply_template(Service&, const Request&, const Parts&);
Response health(Service&, const Request&, const Parts&);
Response ready(Service&, const Request&, const Parts&);
Response status(Service&, const Request&, const Parts&);
Response metrics(Service&, const Request&, const Parts&);
Response openapi_page(Service&, const Request&, const Parts&);
Response page(Service&, const Request&, const Parts&);

// Shared by them.
NodePtr node_of(Service& service, const Request& request, const Parts& parts);  // of {id}
int64_t now();
// The name that a request gives the model, one of which it has, or the first of those.
std::string check_model(const Service& service, Fields& fields);
ChatAsked read_chat(Fields& fields);  // "now", "template_variables", "continue_final_message"
Json usage_json(const Usage& usage, size_t drawn);

}  // namespace stet::serve
