// OpenAI's responses: replies that are kept. A response's id is that of the state after it, so that
// it names the state. A stream tells it before that state is there.
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

struct ResponseAsked {
  std::vector<Message> messages;
  std::optional<std::string> instructions;
  NodePtr previous;
  DrawOptions draw;
  ChatAsked chat;
  bool stream = false, store = true;
  std::string model;
};

void read_unsupported(Fields& f) {
  if (auto text = f.object("text")) {
    text->neutral("format", {{{"type", "text"}}});
    text->neutral("verbosity", {"medium"});
    text->finish();
  }
  if (auto options = f.object("stream_options")) {
    options->neutral("include_obfuscation", {false, true});
    options->finish();
  }
  f.neutral("tools", {Json::array()});
  f.neutral("tool_choice", {"none", "auto"});
  f.neutral("parallel_tool_calls", {true, false});
  f.neutral("max_tool_calls", {});
  f.neutral("reasoning", {{{"effort", "none"}}});
  f.neutral("truncation", {"disabled", "auto"});
  f.neutral("background", {false});
  f.neutral("include", {});
  f.neutral("conversation", {});
  f.neutral("prompt", {});
  f.neutral("service_tier", {"auto", "default"});
  f.neutral("top_logprobs", {0});
  f.unused({"metadata", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"});
}

ResponseAsked read_response(Service& service, const Request& request, const Json& body) {
  Fields f(body, "");
  ResponseAsked a;
  a.model = check_model(service, f);
  a.draw = read_draw(f, service.model->config().vocab_size);
  a.draw.max_tokens = f.integer("max_output_tokens", 1, kMaxPositions);
  a.stream = f.boolean("stream").value_or(false);
  a.store = f.boolean("store").value_or(true);
  a.chat = read_chat(f);
  const auto previous = f.name("previous_response_id"), from = f.name("resume_from");
  if (previous && from) refuse("/resume_from", "previous_response_id or this, not both", *from);
  if (previous) a.previous = find_response(service, request, *previous, "/previous_response_id");
  if (from) a.previous = service.states.find(request.client, *from, "/resume_from");
  const Json* input = f.find("input");
  if (input != nullptr && input->is_string())
    a.messages = {{"user", input->get<std::string>(), "", 0, 0, false}};
  else
    a.messages = read_messages(f, "input");
  a.instructions = f.name("instructions");
  if (a.instructions && !a.previous)
    a.messages.insert(a.messages.begin(), Message{"system", *a.instructions, "", 0, 0, false});
  read_unsupported(f);
  f.finish();
  a.draw.settle(service);
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

// With the state that is there: also when somebody asks for it later.
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

// Instructions are the beginning of all that was processed, and stay with it.
void check_instructions(Service& service, const Caller& caller, const ResponseAsked& a) {
  if (!a.instructions || !a.previous) return;
  const Session session = service.open(caller, a.previous);
  const std::vector<Message>& all = session.chat().messages;
  if (!all.empty() && all[0].role == "system" && all[0].content == *a.instructions) return;
  refuse("/instructions", "those of the response that is gone on from, or none",
         printable(tool::dump(Json(*a.instructions)), 60), "unsupported_field");
}

Prompt check(Service& service, const Caller& caller, const ResponseAsked& a) {
  check_instructions(service, caller, a);
  return check_messages(service, caller, a.previous, a.messages, a.chat);
}

Json finish(Service& service, const ResponseAsked& a, const Prompted& p, const ReplyResult& r) {
  Json j = kept_json(service, r.node, a.model, r.reply.text, &p.usage, r.reply.ids.size());
  j["seed"] = a.draw.told_seed();
  j["store"] = a.store;
  if (!a.store) service.states.release(r.node);
  return j;
}

// The events of one reply, numbered as the clients want them.
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

// A response that is told before its state is there: what it will be called.
struct Announced {
  explicit Announced(const Service& service, const std::string& client)
      : name(random_name()), id(kPrefix + service.states.response_id(client, name).substr(3)) {}

  std::string name, id;
};

void stream(Service& service, const Caller& caller, const ResponseAsked& a, const Prompt& prompt,
            const Announced& announced, Events& all, Writer& writer) {
  const std::string& id = announced.id;
  Json begun = response_json(service, id, a.model, "in_progress", now(), Json::array());
  begun["seed"] = a.draw.told_seed();
  const std::string item = "msg_" + id.substr(5);
  const Json part = {{"type", "output_text"}, {"text", ""}, {"annotations", Json::array()}};
  const auto send = [&](const char* type, Json fields) {
    return all.send(writer, type, std::move(fields));
  };
  send("response.created", {{"response", begun}});
  send("response.in_progress", {{"response", begun}});
  Prompted p = prompt(caller);
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

}  // namespace

Response create_response(Service& service, const Request& request, const Parts&) {
  const ResponseAsked a = read_response(service, request, parse_body(request.body));
  if (a.stream) {
    const auto events = std::make_shared<Events>();
    const auto prepare = [&](const Caller& caller) -> StreamBody {
      return
          [&service, a, events, prompt = check(service, caller, a),
           announced = Announced(service, request.client)](const Caller& talking, Writer& writer) {
            stream(service, talking, a, prompt, announced, *events, writer);
          };
    };
    return stream_events(service, request, prepare,
                         [events](const RequestError& error) { return events->error(error); });
  }
  return answer_at_once(service, request, [&](const Caller& caller) {
    Prompted p = check(service, caller, a)(caller);
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
  // What the request has begun it with is no part of a response.
  const std::string& content = all.back().content;
  const size_t begun = node->operation.value("prefilled", size_t{0});
  Json j = kept_json(service, node, service.name, content.substr(std::min(begun, content.size())),
                     nullptr, 0);
  j["seed"] = session.generation().sampling.seed;
  return json_response(j);
}

Response delete_response(Service& service, const Request& request, const Parts& parts) {
  service.states.remove(find_response(service, request, parts[0], "/id"));
  return json_response({{"id", parts[0]}, {"object", "response"}, {"deleted", true}});
}

}  // namespace stet::serve
