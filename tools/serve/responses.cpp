// OpenAI's responses API: replies that are kept. A response's id is that of the state after the
// reply. A stream gives the id before that state exists.
#include "stet/base/error.hpp"
#include "tools/serve/routes.hpp"

namespace stet::serve {
namespace {

constexpr char kPrefix[] = "resp_";

std::string response_id(const Node& node) { return kPrefix + node.id.substr(3); }

NodePtr find_response(Service& service, const Request& request, const std::string& id,
                      const std::string& pointer) {
  const auto unknown = [&](const char* expected) -> RequestError {
    return {404, "no_such_response",
            pointer + ": expected " + expected + ", found " + printable(id, 60), pointer};
  };
  if (!id.starts_with(kPrefix)) throw unknown("resp_…");
  try {
    return service.states.find(request.client, "st_" + id.substr(sizeof kPrefix - 1), pointer);
  } catch (const RequestError& e) {
    if (e.status != 404 || e.code == "state_expired") throw;
    throw unknown("a response of this client");
  }
}

struct ResponseRequest {
  std::vector<Message> messages;
  std::optional<std::string> instructions;
  NodePtr previous;
  DrawOptions draw;
  ChatOptions chat;
  bool stream = false, store = true;
  std::string model;
};

void read_response_input(ResponseRequest& r, const Field& f, const BodyContext&) {
  if (f.value() != nullptr && f.value()->is_string())
    r.messages = {{"user", f.value()->get<std::string>(), "", 0, 0, false}};
  else
    r.messages = read_messages(f);
}

void read_previous(ResponseRequest& r, const Field& f, const BodyContext& context) {
  if (const auto id = f.nonempty_text())
    r.previous = find_response(context.service, context.request, *id, f.pointer());
}

// Must be read after read_previous(), since the two fields exclude each other.
void read_state(ResponseRequest& r, const Field& f, const BodyContext& context) {
  const auto id = f.nonempty_text();
  if (!id) return;
  if (r.previous)
    throw RequestError(400, "invalid_value",
                       f.pointer() + ": give previous_response_id or resume_from, not both",
                       f.pointer());
  r.previous = read_resume_from(f, context);
}

void read_text_options(ResponseRequest&, const Field& f, const BodyContext&) {
  auto text = f.object();
  if (!text) return;
  (*text)["format"].neutral({Json{{"type", "text"}}});
  (*text)["verbosity"].neutral({"medium"});
  text->finish();
}

void read_response_stream_options(ResponseRequest&, const Field& f, const BodyContext&) {
  auto options = f.object();
  if (!options) return;
  (*options)["include_obfuscation"].neutral({false, true});
  options->finish();
}

BodyFields<ResponseRequest> response_fields() {
  using R = ResponseRequest;
  return BodyFields<R>()
      .field("model", "string",
             [](R& r, const Field& f, const BodyContext& context) {
               r.model = read_model(f, context);
             })
      .part(&R::draw, draw_fields())
      .field("max_output_tokens", "integer",
             [](R& r, const Field& f, const BodyContext&) {
               r.draw.max_tokens = f.integer(1, kMaxPositions);
             })
      .boolean("stream", &R::stream)
      .boolean("store", &R::store)
      .part(&R::chat, chat_fields())
      .field("previous_response_id", "string", read_previous)
      .field("resume_from", "string", read_state)
      .required("input", "any", read_response_input)
      .field("instructions", "string",
             [](R& r, const Field& f, const BodyContext&) { r.instructions = f.nonempty_text(); })
      .field("text", "object", read_text_options)
      .field("stream_options", "object", read_response_stream_options)
      .neutral("tools", "array", {Json::array()})
      .neutral("tool_choice", "string", {"none", "auto"})
      .neutral("parallel_tool_calls", "boolean", {true, false})
      .neutral("max_tool_calls", "integer")
      .neutral("reasoning", "object", {Json{{"effort", "none"}}})
      .neutral("truncation", "string", {"disabled", "auto"})
      .neutral("background", "boolean", {false})
      .neutral("include", "array")
      .neutral("conversation", "any")
      .neutral("prompt", "object")
      .neutral("service_tier", "string", {"auto", "default"})
      .neutral("top_logprobs", "integer", {0})
      .unused("object", {"metadata"})
      .unused("string",
              {"user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"});
}

Json output_item(const std::string& id, const std::string& text, bool done) {
  Json content = Json::array();
  if (done)
    content.push_back({{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}});
  return {{"type", "message"},
          {"id", "msg_" + id},
          {"status", done ? "completed" : "in_progress"},
          {"role", "assistant"},
          {"content", content}};
}

Json response_json(const Service& service, const std::string& id, const std::string& model,
                   const std::string& status, int64_t created, const Json& output) {
  return {{"id", id},
          {"object", "response"},
          {"created_at", created},
          {"status", status},
          {"error", nullptr},
          {"incomplete_details",
           status == "incomplete" ? Json{{"reason", "max_output_tokens"}} : Json(nullptr)},
          {"model", model},
          {"output", output},
          {"parallel_tool_calls", false},
          {"tool_choice", "none"},
          {"tools", Json::array()},
          {"system_fingerprint", service.fingerprint}};
}

// Returns the object of a response whose state exists, also for a later request.
Json kept_json(Service& service, const NodePtr& node, const std::string& model,
               const std::string& text, const Usage* usage, size_t drawn) {
  const std::string id = response_id(*node);
  Json j = response_json(service, id, model, node->open ? "incomplete" : "completed", node->created,
                         Json::array({output_item(id.substr(5), text, true)}));
  j["output_text"] = text;
  const Json parent = service.states.json(node)["parent"];
  j["previous_response_id"] =
      parent.is_null() ? Json(nullptr) : Json(kPrefix + parent.get<std::string>().substr(3));
  j["state_id"] = node->id;
  j["state_digest"] = sha256_text(node->digests.id);
  if (usage == nullptr) return j;
  j["usage"] = {{"input_tokens", usage->prompt()},
                {"input_tokens_details", {{"cached_tokens", usage->reused}}},
                {"output_tokens", drawn},
                {"output_tokens_details", {{"reasoning_tokens", 0}}},
                {"total_tokens", usage->prompt() + static_cast<int64_t>(drawn)},
                {"reused", usage->reused},
                {"recomputed", usage->recomputed},
                {"new", usage->fresh},
                {"reason", usage->reason}};
  return j;
}

// Throws for new instructions: they would be the beginning of everything processed.
void check_instructions(Service& service, const Caller& caller, const ResponseRequest& a) {
  if (!a.instructions || !a.previous) return;
  const Session session = service.open(caller, a.previous);
  const std::vector<Message>& all = session.chat().messages;
  if (!all.empty() && all[0].role == "system" && all[0].content == *a.instructions) return;
  refuse("/instructions", "the instructions of the previous response, or none",
         printable(tool::dump(Json(*a.instructions)), 60), "unsupported_field");
}

CheckedPrompt check(Service& service, const Caller& caller, const ResponseRequest& a) {
  check_instructions(service, caller, a);
  return check_messages(service, caller, a.previous, a.messages, a.chat);
}

Json finish(Service& service, const ResponseRequest& a, const PreparedPrompt& p,
            const ReplyResult& r) {
  Json j = kept_json(service, r.node, a.model, r.reply.text, &p.usage, r.reply.ids.size());
  // An equal state that another request has made may have another parent.
  j["previous_response_id"] =
      a.previous == nullptr ? Json(nullptr) : Json(response_id(*a.previous));
  j["seed"] = a.draw.reported_seed();
  j["store"] = a.store;
  if (!a.store) service.states.release(r.node);
  return j;
}

// Writes the events of one reply, numbered as clients expect.
class Events {
 public:
  bool send(Writer& writer, const std::string& type, Json fields) {
    return writer.event(numbered(type, std::move(fields)), type);
  }
  Json error(const RequestError& e) {
    Json fields = e.json()["error"];
    const Json whole = fields;
    fields.erase("type");
    fields["error"] = whole;
    return numbered("error", std::move(fields));
  }

 private:
  Json numbered(const std::string& type, Json fields) {
    Json j = {{"type", type}, {"sequence_number", number_++}};
    j.update(fields);
    return j;
  }

  int64_t number_ = 0;
};

// The future id of a response whose state does not exist yet.
struct AnnouncedResponse {
  explicit AnnouncedResponse(const Service& service, const std::string& client)
      : name(random_name()), id(kPrefix + service.states.response_id(client, name).substr(3)) {}

  std::string name, id;
};

void stream(Service& service, const Caller& caller, const ResponseRequest& a,
            const CheckedPrompt& prompt, const AnnouncedResponse& announced, Events& all,
            Writer& writer) {
  const std::string& id = announced.id;
  Json begun = response_json(service, id, a.model, "in_progress", now(), Json::array());
  begun["seed"] = a.draw.reported_seed();
  const std::string item = "msg_" + id.substr(5);
  const Json part = {{"type", "output_text"}, {"text", ""}, {"annotations", Json::array()}};
  const auto send = [&](const char* type, Json fields) {
    return all.send(writer, type, std::move(fields));
  };
  send("response.created", {{"response", begun}});
  send("response.in_progress", {{"response", begun}});
  PreparedPrompt p = prompt(caller);
  p.operation["response"] = announced.name;
  send("response.output_item.added",
       {{"output_index", 0}, {"item", output_item(id.substr(5), "", false)}});
  const Json where = {{"item_id", item}, {"output_index", 0}, {"content_index", 0}};
  const auto with = [&](const char* name, Json value) {
    Json j = where;
    j[name] = std::move(value);
    return j;
  };
  send("response.content_part.added", with("part", part));
  const std::vector<ReplyResult> results =
      draw_replies(service, caller, p, a.draw, [&](const ReplyPiece& piece) {
        return piece.text.empty() ? writer.good()
                                  : send("response.output_text.delta", with("delta", piece.text));
      });
  const ReplyResult& r = results[0];
  send("response.output_text.done", with("text", r.reply.text));
  Json whole = part;
  whole["text"] = r.reply.text;
  send("response.content_part.done", with("part", whole));
  send("response.output_item.done",
       {{"output_index", 0}, {"item", output_item(id.substr(5), r.reply.text, true)}});
  const Json last = finish(service, a, p, r);
  send(last["status"] == "incomplete" ? "response.incomplete" : "response.completed",
       {{"response", last}});
}

Response answer(Service& service, const Request& request, ResponseRequest a) {
  if (a.instructions && !a.previous)
    a.messages.insert(a.messages.begin(), Message{"system", *a.instructions, "", 0, 0, false});
  a.draw.settle(service);
  if (!a.stream)
    return answer_at_once(service, request, [&](const Caller& caller) {
      PreparedPrompt p = check(service, caller, a)(caller);
      return finish(service, a, p, draw_replies(service, caller, p, a.draw, nullptr)[0]);
    });
  const auto events = std::make_shared<Events>();
  const auto prepare = [&](const Caller& caller) -> StreamBody {
    return [&service, a, events, prompt = check(service, caller, a),
            announced = AnnouncedResponse(service, request.client)](const Caller& talking,
                                                                    Writer& writer) {
      stream(service, talking, a, prompt, announced, *events, writer);
    };
  };
  return stream_events(service, request, prepare,
                       [events](const RequestError& error) { return events->error(error); });
}

}  // namespace

Endpoint create_response() { return endpoint(response_fields(), answer); }

namespace {

Json found_json(Service& service, const NodePtr& node, const Session& session) {
  const auto& all = session.chat().messages;
  if (all.empty() || !all.back().generated)
    throw RequestError(404, "no_such_response",
                       "this state ends without a reply, so it is not a response");
  // Text with which the request began the reply is no part of the response.
  const std::string& content = all.back().content;
  const size_t begun = node->operation.value("prefilled", size_t{0});
  Json j = kept_json(service, node, service.name, content.substr(std::min(begun, content.size())),
                     nullptr, 0);
  j["seed"] = session.generation().sampling.seed;
  return j;
}

}  // namespace

Response get_response(Service& service, const Request& request, const Parts& parts) {
  const NodePtr node = find_response(service, request, parts[0], "/id");
  return respond_from(service, request, {node}, [&](std::vector<Session>& sessions) {
    return json_response(found_json(service, node, sessions[0]));
  });
}

Response delete_response(Service& service, const Request& request, const Parts& parts) {
  service.states.remove(find_response(service, request, parts[0], "/id"));
  return json_response({{"id", parts[0]}, {"object", "response"}, {"deleted", true}});
}

}  // namespace stet::serve
