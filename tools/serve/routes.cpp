#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "stet/api.h"
#include "stet/base/error.hpp"
#include "tools/serve/routes.hpp"

namespace stet::serve {
namespace {

Parts split(std::string_view path) {
  Parts parts;
  while (!path.empty()) {
    path.remove_prefix(1);
    const size_t end = std::min(path.find('/'), path.size());
    parts.emplace_back(path.substr(0, end));
    path.remove_prefix(end);
  }
  return parts;
}

bool matches(const Route& route, Parts parts, Parts* variables) {
  const Parts pattern = split(route.path);
  while (route.takes_rest && parts.size() > pattern.size()) {
    const std::string last = std::move(parts.back());
    parts.pop_back();
    parts.back() += "/" + last;
  }
  if (pattern.size() != parts.size()) return false;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (pattern[i].starts_with('{'))
      variables->push_back(parts[i]);
    else if (pattern[i] != parts[i])
      return false;
  }
  return true;
}

// Parses "name:type name:type".
std::vector<FieldSchema> parameters_of(std::string_view text) {
  std::vector<FieldSchema> all;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view parameter = text.substr(0, end);
    const size_t colon = parameter.find(':');
    all.push_back(
        {std::string(parameter.substr(0, colon)), std::string(parameter.substr(colon + 1)), false});
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return all;
}

void check_query(const Route& route, const Request& request) {
  const std::vector<FieldSchema> known = parameters_of(route.query);
  for (const auto& given : request.query) {
    const auto is = [&](const FieldSchema& f) { return f.name == given.first; };
    if (std::none_of(known.begin(), known.end(), is))
      throw RequestError(
          400, "unknown_field",
          fmt::format("?{} is not a parameter of this address", printable(given.first, 60)),
          "?" + given.first);
  }
}

bool is_page(const Request& request) {
  return request.method == "GET" && (request.path == "/" || request.path.starts_with("/page/"));
}

}  // namespace

const std::vector<Route>& routes() {
  static const std::vector<Route> all = {
      {"GET", "/v1/models", "The model that this server has, by all its names.", models,
       "beta:boolean limit:integer after_id:string before_id:string"},
      {"GET", "/v1/models/{id}", "The same by one of them.", model, "beta:boolean", Lane::work,
       false, false, true},
      {"POST", "/v1/chat/completions", "A reply to messages, as OpenAI's.", chat_completions()},
      {"POST", "/v1/completions", "A reply to text or token ids, as OpenAI's.", completions()},
      {"POST", "/v1/embeddings", "Hidden states of a layer, mean or last, of unit length.",
       embeddings()},
      {"POST", "/v1/responses", "A reply that is kept, as OpenAI's.", create_response()},
      {"GET", "/v1/responses/{id}", "A reply that was kept.", get_response},
      {"DELETE", "/v1/responses/{id}", "Deletes a reply.", delete_response},
      {"POST", "/v1/messages", "A reply to messages, as Anthropic's.", messages(), "beta:boolean"},
      {"POST", "/v1/messages/count_tokens", "How many tokens these messages are.", count_tokens(),
       "beta:boolean"},
      {"GET", "/v1/states", "All states of this client, in the order they were made.", list_states},
      {"POST", "/v1/states", "A state of messages, text or token ids.", create_state()},
      {"POST", "/v1/states/upload", "A state from a snapshot file.", upload_state, "over:string",
       Lane::work, false, true},
      {"GET", "/v1/states/{id}", "All that a state is.", get_state},
      {"PATCH", "/v1/states/{id}", "Names a state, or pins it.", patch_state()},
      {"DELETE", "/v1/states/{id}", "Deletes a state.", delete_state},
      {"POST", "/v1/states/{id}/continue", "A reply, or some tokens of it.", continue_state()},
      {"POST", "/v1/states/{id}/fork", "The same state under another id.", fork_state()},
      {"POST", "/v1/states/{id}/rewind", "The state before a token or a message.", rewind_state()},
      {"POST", "/v1/states/{id}/prune", "The state without its middle.", prune_state()},
      {"POST", "/v1/states/{id}/edit", "The state with another message.", edit_state()},
      {"POST", "/v1/states/{id}/verify",
       "Recomputes the state from its tokens and compares the bits.", verify_state()},
      {"GET", "/v1/states/{id}/tokens", "The tokens of a state.", state_tokens, "logprobs:boolean"},
      {"GET", "/v1/states/{id}/top", "The likeliest next tokens.", state_top, "n:integer"},
      {"GET", "/v1/states/{id}/kv", "Keys or values of one layer and head.", state_kv,
       "layer:integer head:integer what:string"},
      {"GET", "/v1/states/{id}/attention", "Who looks where, in one layer and head.",
       state_attention, "layer:integer head:integer last:integer"},
      {"GET", "/v1/states/{id}/lens", "The head over each layer: the logit lens.", state_lens,
       "last:integer"},
      {"GET", "/v1/states/{id}/norms", "Norms of keys and values, by layer and position.",
       state_norms},
      {"GET", "/v1/states/{id}/patch/{other}",
       "Activation patching: how far one state's prediction returns when its activations replace "
       "another's.",
       patch_states, "last:integer"},
      {"GET", "/v1/states/{id}/diff/{other}", "Two states side by side.", diff_states},
      {"GET", "/v1/states/{id}/snapshot", "The state as a snapshot file.", download_state,
       "form:string over:string"},
      {"POST", "/tokenize", "Convert text to token ids.", tokenize()},
      {"POST", "/detokenize", "Convert token ids to text.", detokenize()},
      {"POST", "/apply-template", "Messages to the text of a prompt.", apply_template()},
      {"GET", "/health", "Whether the server lives.", health, "", Lane::at_once, true},
      {"GET", "/ready", "Whether it takes requests.", ready, "", Lane::beside, true},
      {"GET", "/v1/status", "What the server is doing.", status, "", Lane::beside},
      {"GET", "/metrics", "The same for Prometheus.", metrics, "", Lane::beside},
      {"GET", "/openapi.json", "These addresses.", openapi_page, "", Lane::beside, true},
  };
  return all;
}

bool is_control(const Request& request) {
  if (is_page(request)) return true;
  Parts ignored;
  for (const Route& r : routes()) {
    if (r.control && r.path == request.path) return true;
  }
  return false;
}

const Route* find_route(const Request& request, Parts* parts) {
  if (is_page(request)) return nullptr;
  const Parts asked = split(request.path);
  std::string allowed;
  for (const Route& r : routes()) {
    Parts variables;
    if (!matches(r, asked, &variables)) continue;
    if (r.method == request.method) {
      check_query(r, request);
      *parts = std::move(variables);
      return &r;
    }
    allowed += (allowed.empty() ? "" : ", ") + std::string(r.method);
  }
  if (!allowed.empty())
    throw RequestError(
        405, "method_not_allowed",
        fmt::format("this address takes {}, not {}", allowed, printable(request.method, 20)));
  throw RequestError(
      404, "no_such_address",
      "no such address: " + printable(request.path, 100) + " (/openapi.json lists them)");
}

namespace {

// Returns the JSON schema of a body with these fields.
Json schema_of(const std::vector<FieldSchema>& fields) {
  Json properties = Json::object(), required = Json::array();
  for (const FieldSchema& f : fields) {
    properties[f.name] = f.type == "any" ? Json::object() : Json{{"type", {f.type, "null"}}};
    if (f.required) required.push_back(f.name);
  }
  Json schema = {{"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
  if (!required.empty()) schema["required"] = required;
  return schema;
}

}  // namespace

Json openapi() {
  Json paths = Json::object();
  for (const Route& r : routes()) {
    std::string method = r.method;
    for (char& c : method) c = static_cast<char>(std::tolower(c));
    Json operation = {
        {"summary", r.summary},
        {"responses",
         {{"200", {{"description", "done"}}},
          {"default",
           {{"description", "an error: what was expected, what was found, and where"}}}}}};
    for (const std::string& part : split(r.path)) {
      if (part.starts_with('{'))
        operation["parameters"].push_back({{"name", part.substr(1, part.size() - 2)},
                                           {"in", "path"},
                                           {"required", true},
                                           {"schema", {{"type", "string"}}}});
    }
    for (const FieldSchema& f : parameters_of(r.query))
      operation["parameters"].push_back(
          {{"name", f.name}, {"in", "query"}, {"schema", {{"type", f.type}}}});
    if (!r.endpoint.fields.empty())
      operation["requestBody"]["content"]["application/json"]["schema"] =
          schema_of(r.endpoint.fields);
    paths[r.path][method] = operation;
  }
  return {{"openapi", "3.1.0"},
          {"info", {{"title", "stet serve"}, {"version", STET_VERSION}}},
          {"paths", paths}};
}

NodePtr node_of(Service& service, const Request& request, const Parts& parts) {
  return service.states.find(request.client, parts[0], "/id");
}

int64_t now() { return static_cast<int64_t>(std::time(nullptr)); }

Json usage_json(const Usage& u, size_t drawn) {
  const auto completion = static_cast<int64_t>(drawn);
  return {{"prompt_tokens", u.prompt()},
          {"completion_tokens", completion},
          {"total_tokens", u.prompt() + completion},
          {"prompt_tokens_details", {{"cached_tokens", u.reused}}},
          {"reused", u.reused},
          {"recomputed", u.recomputed},
          {"new", u.fresh},
          {"reason", u.reason}};
}

}  // namespace stet::serve
