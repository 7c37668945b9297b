// Anthropic's messages: plain text, whole or streamed.
#include "stet/base/error.hpp"
#include "tools/serve/routes.hpp"

namespace stet::serve {
namespace {

struct MessagesAsked {
  std::vector<Message> messages;
  DrawOptions draw;
  ChatAsked chat;
  NodePtr from;
  bool stream = false;
  std::string id, model;
};

MessagesAsked read_messages_request(Service& service, const Request& request, Fields& f) {
  MessagesAsked a;
  a.model = check_model(service, f);
  a.messages = read_messages(f, "messages");
  const Json* const given = f.find("system");
  const std::string system = given == nullptr ? "" : read_content(*given, "/system");
  if (!system.empty())
    a.messages.insert(a.messages.begin(), Message{"system", system, "", 0, 0, false});
  a.draw.max_tokens = f.integer("max_tokens", 1, kMaxPositions);
  a.draw.temperature = f.number("temperature", 0, 1e30);
  a.draw.top_p = f.number("top_p", 0, 1);
  a.draw.top_k = f.integer("top_k", 0, INT32_MAX);
  a.draw.seed = f.integer("seed", 0, INT64_MAX);
  if (f.find("stop_sequences") != nullptr) a.draw.stop = f.texts("stop_sequences", 16);
  a.stream = f.boolean("stream").value_or(false);
  a.chat = read_chat(f);
  if (const auto from = f.name("resume_from"))
    a.from = service.states.find(request.client, *from, "/resume_from");
  f.neutral("tools", {Json::array()});
  f.neutral("tool_choice", {{{"type", "none"}},
                            {{"type", "auto"}},
                            {{"type", "auto"}, {"disable_parallel_tool_use", false}},
                            {{"type", "auto"}, {"disable_parallel_tool_use", true}}});
  f.neutral("thinking", {{{"type", "disabled"}}});
  f.neutral("service_tier", {"auto", "standard_only"});
  f.unused({"metadata"});
  f.finish();
  a.draw.settle(service);
  a.id = service.states.handle("msg_", request.client, request.body);
  return a;
}

// Which stop string it was: the one whose text follows the reply's in what was drawn.
Json stop_sequence(const Service& service, const MessagesAsked& a, const ReplyResult& r) {
  if (r.reply.stop != StopReason::stop_string || !a.draw.stop) return nullptr;
  const std::string all = service.tokenizer->decode(r.reply.ids, true);
  // Alone, a reply that goes on from a beginning may lose the space between both.
  const bool whole = all.find(r.reply.text) != std::string::npos;
  const std::string text = r.reply.text.substr(whole ? 0 : 1);
  std::string best;
  for (const std::string& s : *a.draw.stop) {
    if (all.find(text + s) != std::string::npos && s.size() > best.size()) best = s;
  }
  return best.empty() ? Json(nullptr) : Json(best);
}

const char* stop_reason(const Reply& reply) {
  return reply.stop == StopReason::length        ? "max_tokens"
         : reply.stop == StopReason::stop_string ? "stop_sequence"
                                                 : "end_turn";
}

Json anthropic_usage(const Usage& u, size_t drawn) {
  return {{"input_tokens", u.recomputed + u.fresh},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", u.reused},
          {"output_tokens", drawn},
          {"reused", u.reused},
          {"recomputed", u.recomputed},
          {"new", u.fresh},
          {"reason", u.reason}};
}

Json message_json(const MessagesAsked& a, const Json& content, const Json& used) {
  return {{"id", a.id},
          {"type", "message"},
          {"role", "assistant"},
          {"model", a.model},
          {"content", content},
          {"stop_reason", nullptr},
          {"stop_sequence", nullptr},
          {"seed", a.draw.told_seed()},
          {"usage", used}};
}

Prompt check(Service& service, const Caller& caller, const MessagesAsked& a) {
  return check_messages(service, caller, a.from, a.messages, a.chat);
}

Json whole(Service& service, const Caller& caller, const MessagesAsked& a) {
  Prompted p = check(service, caller, a)(caller);
  const ReplyResult r = draw_replies(service, caller, p, a.draw, nullptr)[0];
  Json j = message_json(a, {{{"type", "text"}, {"text", r.reply.text}}},
                        anthropic_usage(p.usage, r.reply.ids.size()));
  j["stop_reason"] = stop_reason(r.reply);
  j["stop_sequence"] = stop_sequence(service, a, r);
  j["state_id"] = r.node->id;
  j["state_digest"] = sha256_text(r.node->digests.id);
  return j;
}

void stream(Service& service, const Caller& caller, const MessagesAsked& a, const Prompt& prompt,
            Writer& writer) {
  const auto send = [&](const char* type, Json fields) {
    Json j = {{"type", type}};
    j.update(fields);
    return writer.event(j, type);
  };
  Prompted p = prompt(caller);
  send("message_start", {{"message", message_json(a, Json::array(), anthropic_usage(p.usage, 0))}});
  send("content_block_start", {{"index", 0}, {"content_block", {{"type", "text"}, {"text", ""}}}});
  const ReplyResult r = draw_replies(service, caller, p, a.draw, [&](const ReplyPiece& piece) {
    if (piece.text.empty()) return writer.good();
    return send("content_block_delta",
                {{"index", 0}, {"delta", {{"type", "text_delta"}, {"text", piece.text}}}});
  })[0];
  send("content_block_stop", {{"index", 0}});
  send("message_delta",
       {{"delta",
         {{"stop_reason", stop_reason(r.reply)}, {"stop_sequence", stop_sequence(service, a, r)}}},
        {"usage", {{"output_tokens", r.reply.ids.size()}}},
        {"state_id", r.node->id},
        {"state_digest", sha256_text(r.node->digests.id)}});
  send("message_stop", Json::object());
}

}  // namespace

Response messages(Service& service, const Request& request, const Parts&) {
  const Json body = parse_body(request.body);
  Fields f(body, "");
  const MessagesAsked a = read_messages_request(service, request, f);
  if (!a.draw.max_tokens) refuse("/max_tokens", "a number of tokens", "nothing", "missing_field");
  if (!a.stream)
    return answer_at_once(service, request,
                          [&](const Caller& caller) { return whole(service, caller, a); });
  return stream_events(service, request, [&service, a](const Caller& caller) -> StreamBody {
    return
        [&service, a, prompt = check(service, caller, a)](const Caller& talking, Writer& writer) {
          stream(service, talking, a, prompt, writer);
        };
  });
}

Response count_tokens(Service& service, const Request& request, const Parts&) {
  const Json body = parse_body(request.body);
  Fields f(body, "");
  const MessagesAsked a = read_messages_request(service, request, f);
  return answer_at_once(service, request, [&](const Caller& caller) {
    return Json{
        {"input_tokens", render_prompt(service, caller, a.from, a.messages, a.chat).ids.size()}};
  });
}

}  // namespace stet::serve
