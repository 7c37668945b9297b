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

// What several requests have.
#define DRAW                                                                     \
  "temperature:number top_p:number top_k:integer min_p:number typical_p:number " \
  "repetition_penalty:number seed:integer stop:any ignore_eos:boolean "          \
  "frequency_penalty:number presence_penalty:number logit_bias:object "
#define CHAT "now:integer template_variables:object continue_final_message:boolean "
#define OPENAI                                                                      \
  "model:string n:integer stream:boolean stream_options:object resume_from:string " \
  "user:string metadata:object safety_identifier:string prompt_cache_key:string "   \
  "prompt_cache_retention:string " DRAW
#define MESSAGES                                                                          \
  CHAT "messages:array! model:string system:any temperature:number top_p:number "         \
       "top_k:integer seed:integer stop_sequences:any stream:boolean resume_from:string " \
       "tools:array tool_choice:object thinking:object service_tier:string metadata:object "

struct Field {
  std::string name, type;
  bool needed;
};

// "name:type name:type!"
std::vector<Field> fields_of(std::string_view text) {
  std::vector<Field> all;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    std::string field(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (field.empty()) continue;
    const bool needed = field.back() == '!';
    if (needed) field.pop_back();
    const size_t colon = field.find(':');
    all.push_back({field.substr(0, colon), field.substr(colon + 1), needed});
  }
  return all;
}

void check_query(const Route& route, const Request& request) {
  const std::vector<Field> known = fields_of(route.query);
  for (const auto& given : request.query) {
    const auto is = [&](const Field& f) { return f.name == given.first; };
    if (std::none_of(known.begin(), known.end(), is))
      refuse("?" + given.first, "a parameter that this address knows", printable(given.second, 60),
             "unknown_field");
  }
}

// What the operator has to know of a failure is in the log, and no more than that it was one in the
// answer.
Response answer_of(const Route& route, Service& service, const Request& request,
                   const Parts& variables) {
  try {
    return route.answer(service, request, variables);
  } catch (const RequestError&) {
    throw;
  } catch (const Error& e) {
    if (e.kind != ErrorKind::io) throw;
    throw reported_error();
  } catch (const std::exception&) {
    throw reported_error();
  }
}

bool is_page(const Request& request) {
  return request.method == "GET" && (request.path == "/" || request.path.starts_with("/page/"));
}

}  // namespace

const std::vector<Route>& routes() {
  static const std::vector<Route> all = {
      {"GET", "/v1/models", "The model that this server has, by all its names.", models, "", false,
       "beta:boolean"},
      {"GET", "/v1/models/{id}", "The same by one of them.", model, "", false, "beta:boolean"},
      {"POST", "/v1/chat/completions", "A reply to messages, as OpenAI's.", chat_completions,
       OPENAI CHAT
       "messages:array! max_tokens:integer max_completion_tokens:integer logprobs:boolean "
       "top_logprobs:integer tools:array tool_choice:string parallel_tool_calls:boolean "
       "functions:array function_call:string response_format:object modalities:array "
       "store:boolean service_tier:string audio:object prediction:object "
       "reasoning_effort:string verbosity:string web_search_options:object"},
      {"POST", "/v1/completions", "A reply to text or token ids, as OpenAI's.", completions,
       OPENAI "prompt:any! max_tokens:integer logprobs:integer echo:boolean suffix:string "
              "best_of:integer"},
      {"POST", "/v1/embeddings", "Hidden states of a layer, mean or last, of unit length.",
       embeddings,
       "input:any! model:string layer:integer pooling:string normalize:boolean "
       "encoding_format:string dimensions:integer user:string"},
      {"POST", "/v1/responses", "A reply that is kept, as OpenAI's.", create_response,
       DRAW CHAT "input:any! model:string max_output_tokens:integer stream:boolean store:boolean "
                 "previous_response_id:string resume_from:string instructions:string tools:array "
                 "tool_choice:string parallel_tool_calls:boolean text:object reasoning:object "
                 "truncation:string background:boolean include:array service_tier:string "
                 "top_logprobs:integer metadata:object user:string safety_identifier:string "
                 "prompt_cache_key:string prompt_cache_retention:string conversation:any "
                 "prompt:object max_tool_calls:integer stream_options:object"},
      {"GET", "/v1/responses/{id}", "A reply that was kept.", get_response},
      {"DELETE", "/v1/responses/{id}", "Forgets a reply.", delete_response},
      {"POST", "/v1/messages", "A reply to messages, as Anthropic's.", messages,
       MESSAGES "max_tokens:integer!", false, "beta:boolean"},
      {"POST", "/v1/messages/count_tokens", "How many tokens these messages are.", count_tokens,
       MESSAGES "max_tokens:integer", false, "beta:boolean"},
      {"GET", "/v1/states", "All states of this client, in the order they were made.", list_states},
      {"POST", "/v1/states", "A state of messages, text or token ids.", create_state,
       DRAW CHAT "model:string messages:array text:string ids:array name:string"},
      {"POST", "/v1/states/upload", "A state from a snapshot file.", upload_state, "", false,
       "over:string", Lane::work, true},
      {"GET", "/v1/states/{id}", "All that a state is.", get_state},
      {"PATCH", "/v1/states/{id}", "Names a state, or pins it.", patch_state,
       "name:string pinned:boolean"},
      {"DELETE", "/v1/states/{id}", "Forgets a state.", delete_state},
      {"POST", "/v1/states/{id}/continue", "A reply, or some tokens of it.", continue_state,
       DRAW "n:integer max_tokens:integer choose:integer message:object text:string ids:array "
            "retry:boolean stream:boolean continue_final_message:boolean"},
      {"POST", "/v1/states/{id}/fork", "The same state under another id.", fork_state},
      {"POST", "/v1/states/{id}/rewind", "The state before a token or a message.", rewind_state,
       "tokens:integer message:integer"},
      {"POST", "/v1/states/{id}/prune", "The state without its middle.", prune_state,
       "sinks:integer keep_last:integer! shift:boolean"},
      {"POST", "/v1/states/{id}/edit", "The state with another message.", edit_state,
       "message:integer! content:string!"},
      {"POST", "/v1/states/{id}/verify", "Whether its tokens give the state, bit for bit.",
       verify_state, "stream:boolean"},
      {"GET", "/v1/states/{id}/tokens", "The tokens of a state.", state_tokens, "", false,
       "logprobs:boolean"},
      {"GET", "/v1/states/{id}/top", "The likeliest next tokens.", state_top, "", false,
       "n:integer"},
      {"GET", "/v1/states/{id}/kv", "Keys or values of one layer and head.", state_kv, "", false,
       "layer:integer head:integer what:string"},
      {"GET", "/v1/states/{id}/attention", "Who looks where, in one layer and head.",
       state_attention, "", false, "layer:integer head:integer last:integer"},
      {"GET", "/v1/states/{id}/lens", "The head over each layer: the logit lens.", state_lens, "",
       false, "last:integer"},
      {"GET", "/v1/states/{id}/norms", "Norms of keys and values, by layer and position.",
       state_norms},
      {"GET", "/v1/states/{id}/patch/{other}",
       "How much of what a state says comes back where its activations are put into another one.",
       patch_states, "", false, "last:integer"},
      {"GET", "/v1/states/{id}/diff/{other}", "Two states side by side.", diff_states},
      {"GET", "/v1/states/{id}/snapshot", "The state as a snapshot file.", download_state, "",
       false, "form:string over:string"},
      {"POST", "/tokenize", "Text to token ids.", tokenize,
       "text:string! add_special:boolean parse_special:boolean"},
      {"POST", "/detokenize", "Token ids to text.", detokenize,
       "tokens:array! skip_special:boolean"},
      {"POST", "/apply-template", "Messages to the text of a prompt.", apply_template,
       CHAT "messages:array!"},
      {"GET", "/health", "Whether the server lives.", health, "", true, "", Lane::at_once},
      {"GET", "/ready", "Whether it takes requests.", ready, "", true, "", Lane::beside},
      {"GET", "/v1/status", "What the server is doing.", status, "", false, "", Lane::beside},
      {"GET", "/metrics", "The same for Prometheus.", metrics, "", false, "", Lane::beside},
      {"GET", "/openapi.json", "These addresses.", openapi_page, "", true, "", Lane::beside},
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
      if (parts != nullptr) *parts = std::move(variables);
      return &r;
    }
    allowed += (allowed.empty() ? "" : ", ") + std::string(r.method);
  }
  if (!allowed.empty())
    throw RequestError(
        405, "method_not_allowed",
        fmt::format("expected {}, found {}", allowed, printable(request.method, 20)));
  throw RequestError(404, "no_such_address",
                     "expected an address of /openapi.json, found " + printable(request.path, 100));
}

Response route(Service& service, const Request& request) {
  Parts parts;
  const Route* const to = find_route(request, &parts);
  if (to == nullptr) return page(service, request, {});
  check_query(*to, request);
  return answer_of(*to, service, request, parts);
}

namespace {

// The schema of a body, of Route::fields.
Json schema_of(std::string_view text) {
  Json properties = Json::object(), required = Json::array();
  for (const Field& f : fields_of(text)) {
    properties[f.name] = f.type == "any" ? Json::object() : Json{{"type", {f.type, "null"}}};
    if (f.needed) required.push_back(f.name);
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
    for (const Field& f : fields_of(r.query))
      operation["parameters"].push_back(
          {{"name", f.name}, {"in", "query"}, {"schema", {{"type", f.type}}}});
    if (*r.fields != '\0')
      operation["requestBody"]["content"]["application/json"]["schema"] = schema_of(r.fields);
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

std::string check_model(const Service& service, Fields& fields) {
  const std::string model = fields.name("model").value_or(service.name);
  if (!service.is_name(model))
    throw RequestError(
        404, "model_not_found",
        fmt::format("/model: expected {}, found {}", service.name, printable(model, 60)), "/model");
  return model;
}

ChatAsked read_chat(Fields& fields) {
  ChatAsked chat;
  chat.state.now = fields.integer("now", 0, INT64_C(1) << 40).value_or(0);
  if (auto variables = fields.object("template_variables"))
    chat.state.variables = tool::dump(*fields.find("template_variables"));
  chat.continues = fields.boolean("continue_final_message").value_or(true);
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
