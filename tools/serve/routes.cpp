#include <fmt/format.h>

#include <ctime>

#include "stet/api.h"
#include "tools/serve/interfaces.hpp"

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

bool matches(const Route& route, const Parts& parts, Parts* variables) {
  const Parts pattern = split(route.path);
  if (pattern.size() != parts.size()) return false;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (pattern[i].starts_with('{'))
      variables->push_back(parts[i]);
    else if (pattern[i] != parts[i])
      return false;
  }
  return true;
}

bool is_page(const Request& request) {
  return request.method == "GET" && (request.path == "/" || request.path.starts_with("/page/"));
}

}  // namespace

const std::vector<Route>& routes() {
  static const std::vector<Route> all = {
      {"GET", "/v1/models", "The model that this server has.", models},
      {"POST", "/v1/chat/completions", "A reply to messages, as OpenAI's.", chat_completions},
      {"POST", "/v1/completions", "A reply to text or token ids, as OpenAI's.", completions},
      {"POST", "/v1/embeddings", "Hidden states of a layer, mean or last.", embeddings},
      {"POST", "/v1/responses", "A reply that is kept, as OpenAI's.", create_response},
      {"GET", "/v1/responses/{id}", "A reply that was kept.", get_response},
      {"DELETE", "/v1/responses/{id}", "Forgets a reply.", delete_response},
      {"POST", "/v1/messages", "A reply to messages, as Anthropic's.", messages},
      {"GET", "/v1/states", "All states of this client, in the order they were made.", list_states},
      {"POST", "/v1/states", "A state of messages, text or token ids.", create_state},
      {"POST", "/v1/states/upload", "A state from a snapshot file.", upload_state},
      {"GET", "/v1/states/{id}", "All that a state is.", get_state},
      {"PATCH", "/v1/states/{id}", "Names a state, or pins it.", patch_state},
      {"DELETE", "/v1/states/{id}", "Forgets a state.", delete_state},
      {"POST", "/v1/states/{id}/continue", "A reply, or some tokens of it.", continue_state},
      {"POST", "/v1/states/{id}/fork", "The same state under another id.", fork_state},
      {"POST", "/v1/states/{id}/rewind", "The state before a token or a message.", rewind_state},
      {"POST", "/v1/states/{id}/prune", "The state without its middle.", prune_state},
      {"POST", "/v1/states/{id}/edit", "The state with another message.", edit_state},
      {"POST", "/v1/states/{id}/verify", "Whether its tokens give the state, bit for bit.",
       verify_state},
      {"GET", "/v1/states/{id}/tokens", "The tokens of a state.", state_tokens},
      {"GET", "/v1/states/{id}/top", "The likeliest next tokens.", state_top},
      {"GET", "/v1/states/{id}/kv", "Keys or values of one layer and head.", state_kv},
      {"GET", "/v1/states/{id}/diff/{other}", "Two states side by side.", diff_states},
      {"GET", "/v1/states/{id}/snapshot", "The state as a snapshot file.", download_state},
      {"POST", "/tokenize", "Text to token ids.", tokenize},
      {"POST", "/detokenize", "Token ids to text.", detokenize},
      {"POST", "/apply-template", "Messages to the text of a prompt.", apply_template},
      {"GET", "/health", "Whether the server lives.", health, true},
      {"GET", "/ready", "Whether it takes requests.", ready, true},
      {"GET", "/v1/status", "What the server is doing.", status},
      {"GET", "/metrics", "The same for Prometheus.", metrics},
      {"GET", "/openapi.json", "These addresses.", openapi_page, true},
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

Response route(Service& service, const Request& request) {
  if (is_page(request)) return page(service, request, {});
  const Parts parts = split(request.path);
  std::string allowed;
  for (const Route& r : routes()) {
    Parts variables;
    if (!matches(r, parts, &variables)) continue;
    if (r.method == request.method) return r.answer(service, request, variables);
    allowed += (allowed.empty() ? "" : ", ") + std::string(r.method);
  }
  if (!allowed.empty())
    throw RequestError(
        405, "method_not_allowed",
        fmt::format("expected {}, found {}", allowed, printable(request.method, 20)));
  throw RequestError(404, "no_such_address",
                     "expected an address of /openapi.json, found " + printable(request.path, 100));
}

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

void check_model(const Service& service, Fields& fields) {
  const auto model = fields.text("model");
  if (model && *model != service.name)
    throw RequestError(
        404, "model_not_found",
        fmt::format("/model: expected {}, found {}", service.name, printable(*model, 60)),
        "/model");
}

ChatState read_chat(Fields& fields) {
  ChatState chat;
  chat.now = fields.integer("now", 0, INT64_C(1) << 40).value_or(0);
  if (auto variables = fields.object("template_variables"))
    chat.variables = tool::dump(*fields.find("template_variables"));
  return chat;
}

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
