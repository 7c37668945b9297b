// OpenAI's responses: replies that are kept. A response's id is that of the state after it, so that
// it names the state.
#include "stet/base/error.hpp"
#include "tools/serve/interfaces.hpp"

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

struct ResponseAsked {
  std::vector<Message> messages;
  NodePtr previous;
  DrawOptions draw;
  ChatState chat;
  bool stream = false, store = true;
};

ResponseAsked read_response(Service& service, const Request& request, const Json& body) {
  Fields f(body, "");
  ResponseAsked a;
  check_model(service, f);
  a.draw = read_draw(f);
  a.draw.max_tokens = f.integer("max_output_tokens", 1, kMaxPositions);
  a.stream = f.boolean("stream").value_or(false);
  a.store = f.boolean("store").value_or(true);
  a.chat = read_chat(f);
  const auto previous = f.text("previous_response_id"), from = f.text("resume_from");
  if (previous && from) refuse("/resume_from", "previous_response_id or this, not both", *from);
  if (previous) a.previous = find_response(service, request, *previous, "/previous_response_id");
  if (from) a.previous = service.states.find(request.client, *from, "/resume_from");
  const Json* input = f.find("input");
  if (input != nullptr && input->is_string())
    a.messages = {{"user", input->get<std::string>(), "", 0, 0, false}};
  else
    a.messages = read_messages(f, "input");
  if (const auto instructions = f.text("instructions")) {
    if (a.previous)
      refuse("/instructions", "none with a state to go on from, which has its own",
             printable(*instructions, 60), "unsupported_field");
    a.messages.insert(a.messages.begin(), Message{"system", *instructions, "", 0, 0, false});
  }
  f.neutral("tools", {Json::array()});
  f.neutral("tool_choice", {"none", "auto"});
  f.neutral("parallel_tool_calls", {true, false});
  f.neutral("text", {{{"format", {{"type", "text"}}}}});
  f.neutral("reasoning", {Json::object()});
  f.neutral("truncation", {"disabled"});
  f.neutral("background", {false});
  f.neutral("include", {Json::array()});
  f.neutral("service_tier", {"auto", "default"});
  f.neutral("top_logprobs", {0});
  f.unused({"metadata", "user", "safety_identifier", "prompt_cache_key"});
  f.finish();
  return a;
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

Json response_json(const Service& service, const std::string& id, const std::string& status,
                   int64_t created, const Json& output) {
  return {{"id", id},
          {"object", "response"},
          {"created_at", created},
          {"status", status},
          {"error", nullptr},
          {"incomplete_details",
           status == "incomplete" ? Json{{"reason", "max_output_tokens"}} : Json(nullptr)},
          {"model", service.name},
          {"output", output},
          {"parallel_tool_calls", false},
          {"tool_choice", "none"},
          {"tools", Json::array()},
          {"system_fingerprint", service.fingerprint}};
}

// With the state that is there: also when somebody asks for it later.
Json kept_json(Service& service, const NodePtr& node, const std::string& text, const Usage* usage,
               size_t drawn) {
  const std::string id = response_id(*node);
  Json j = response_json(service, id, node->open ? "incomplete" : "completed", node->created,
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

Prompted prompt(Service& service, const Caller& caller, const ResponseAsked& a) {
  if (!a.previous) return prompt_messages(service, caller, a.messages, a.chat);
  Prompted p = resume(service, caller, a.previous);
  say(service, caller, p, a.messages);
  return p;
}

Json finish(Service& service, const ResponseAsked& a, const Prompted& p, const ReplyResult& r) {
  Json j = kept_json(service, r.node, r.reply.text, &p.usage, r.reply.ids.size());
  j["store"] = a.store;
  if (!a.store) service.states.release(r.node);
  return j;
}

// The events of one reply, numbered as the clients want them.
class Events {
 public:
  explicit Events(Writer& writer) : writer_(writer) {}
  bool send(const std::string& type, Json fields) {
    Json j = {{"type", type}, {"sequence_number", number_++}};
    j.update(fields);
    return writer_.event(j, type);
  }

 private:
  Writer& writer_;
  int64_t number_ = 0;
};

void stream(Service& service, const Caller& caller, const ResponseAsked& a, const std::string& id,
            Writer& writer) {
  Events events(writer);
  const Json begun = response_json(service, id, "in_progress", now(), Json::array());
  const std::string item = "msg_" + id.substr(5);
  const Json part = {{"type", "output_text"}, {"text", ""}, {"annotations", Json::array()}};
  events.send("response.created", {{"response", begun}});
  Prompted p = prompt(service, caller, a);
  events.send("response.in_progress", {{"response", begun}});
  events.send("response.output_item.added",
              {{"output_index", 0}, {"item", output_item(id.substr(5), "", false)}});
  const Json where = {{"item_id", item}, {"output_index", 0}, {"content_index", 0}};
  const auto with = [&](const char* name, Json value) {
    Json j = where;
    j[name] = std::move(value);
    return j;
  };
  events.send("response.content_part.added", with("part", part));
  const std::vector<ReplyResult> results =
      draw_replies(service, caller, p, a.draw, [&](const ReplyPiece& piece) {
        return piece.text.empty()
                   ? writer.good()
                   : events.send("response.output_text.delta", with("delta", piece.text));
      });
  const ReplyResult& r = results[0];
  events.send("response.output_text.done", with("text", r.reply.text));
  Json whole = part;
  whole["text"] = r.reply.text;
  events.send("response.content_part.done", with("part", whole));
  events.send("response.output_item.done",
              {{"output_index", 0}, {"item", output_item(id.substr(5), r.reply.text, true)}});
  const Json last = finish(service, a, p, r);
  events.send(last["status"] == "incomplete" ? "response.incomplete" : "response.completed",
              {{"response", last}});
}

}  // namespace

Response create_response(Service& service, const Request& request, const Parts&) {
  const ResponseAsked a = read_response(service, request, parse_body(request.body));
  if (!a.previous) check_messages(service, a.messages, a.chat);
  if (a.stream) {
    const std::string id = service.states.handle(kPrefix, request.client, request.body);
    return stream_events(service, request, [&service, a, id](const Caller& caller, Writer& writer) {
      stream(service, caller, a, id, writer);
    });
  }
  return answer_at_once(service, request, [&](const Caller& caller) {
    Prompted p = prompt(service, caller, a);
    return finish(service, a, p, draw_replies(service, caller, p, a.draw, nullptr)[0]);
  });
}

Response get_response(Service& service, const Request& request, const Parts& parts) {
  const NodePtr node = find_response(service, request, parts[0], "/id");
  const Session session = service.open(service.caller(request), node);
  const auto& all = session.chat().messages;
  if (all.empty() || !all.back().generated)
    throw RequestError(404, "no_such_response",
                       "expected a response, found a state without a reply");
  return json_response(kept_json(service, node, all.back().content, nullptr, 0));
}

Response delete_response(Service& service, const Request& request, const Parts& parts) {
  service.states.remove(find_response(service, request, parts[0], "/id"));
  return json_response({{"id", parts[0]}, {"object", "response"}, {"deleted", true}});
}

}  // namespace stet::serve
