// Anthropic's messages API: plain text, whole or streamed.
#include "stet/base/error.hpp"
#include "tools/serve/routes.hpp"

namespace stet::serve {
namespace {

struct MessagesRequest {
  std::vector<Message> messages;
  DrawOptions draw;
  ChatOptions chat;
  NodePtr from;
  bool stream = false;
  std::string id, model;
};

BodyFields<DrawOptions> sampling_fields() {
  return BodyFields<DrawOptions>()
      .field("temperature", "number", read_temperature)
      .number("top_p", &DrawOptions::top_p, 0, 1)
      .integer("top_k", &DrawOptions::top_k, 0, INT32_MAX)
      .integer("seed", &DrawOptions::seed, 0, INT64_MAX)
      .field("stop_sequences", "any", [](DrawOptions& draw, const Field& f, const BodyContext&) {
        if (f.value() != nullptr && *f.value() != "") draw.stop = f.texts(kMaxStopStrings);
      });
}

BodyFields<MessagesRequest> message_fields() {
  using M = MessagesRequest;
  return BodyFields<M>()
      .field("model", "string",
             [](M& m, const Field& f, const BodyContext& context) {
               m.model = read_model(f, context);
             })
      .required("messages", "array",
                [](M& m, const Field& f, const BodyContext&) { m.messages = read_messages(f); })
      .field("system", "any",
             [](M& m, const Field& f, const BodyContext&) {
               if (f.value() == nullptr) return;
               const std::string system = read_content(*f.value(), f.pointer());
               if (!system.empty())
                 m.messages.insert(m.messages.begin(), {"system", system, "", 0, 0, false});
             })
      .part(&M::draw, sampling_fields())
      .boolean("stream", &M::stream)
      .part(&M::chat, chat_fields())
      .field("resume_from", "string",
             [](M& m, const Field& f, const BodyContext& context) {
               m.from = read_resume_from(f, context);
             })
      .neutral("tools", "array", {Json::array()})
      .neutral("tool_choice", "object",
               {Json{{"type", "none"}}, Json{{"type", "auto"}},
                Json{{"type", "auto"}, {"disable_parallel_tool_use", false}},
                Json{{"type", "auto"}, {"disable_parallel_tool_use", true}}})
      .neutral("thinking", "object", {Json{{"type", "disabled"}}})
      .neutral("service_tier", "string", {"auto", "standard_only"})
      .unused("object", {"metadata"});
}

void read_max_tokens(MessagesRequest& m, const Field& f, const BodyContext&) {
  m.draw.max_tokens = f.integer(1, kMaxPositions);
}

void read_required_max_tokens(MessagesRequest& m, const Field& f, const BodyContext& context) {
  read_max_tokens(m, f, context);
  if (!m.draw.max_tokens) refuse(f.pointer(), "a number of tokens", "nothing", "missing_field");
}

Json stop_sequence(const Reply& reply) {
  return reply.stop_string.empty() ? Json(nullptr) : Json(reply.stop_string);
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

Json message_json(const MessagesRequest& a, const Json& content, const Json& used) {
  return {{"id", a.id},
          {"type", "message"},
          {"role", "assistant"},
          {"model", a.model},
          {"content", content},
          {"stop_reason", nullptr},
          {"stop_sequence", nullptr},
          {"seed", a.draw.reported_seed()},
          {"usage", used}};
}

CheckedPrompt check(Service& service, const Caller& caller, const MessagesRequest& a) {
  return check_messages(service, caller, a.from, a.messages, a.chat);
}

Json whole(Service& service, const Caller& caller, const MessagesRequest& a) {
  PreparedPrompt p = check(service, caller, a)(caller);
  const ReplyResult r = draw_replies(service, caller, p, a.draw, nullptr)[0];
  Json j = message_json(a, {{{"type", "text"}, {"text", r.reply.text}}},
                        anthropic_usage(p.usage, r.reply.ids.size()));
  j["stop_reason"] = stop_reason(r.reply);
  j["stop_sequence"] = stop_sequence(r.reply);
  j["state_id"] = r.node->id;
  j["state_digest"] = sha256_text(r.node->digests.id);
  return j;
}

void stream(Service& service, const Caller& caller, const MessagesRequest& a,
            const CheckedPrompt& prompt, Writer& writer) {
  const auto send = [&](const char* type, Json fields) {
    Json j = {{"type", type}};
    j.update(fields);
    return writer.event(j, type);
  };
  PreparedPrompt p = prompt(caller);
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
         {{"stop_reason", stop_reason(r.reply)}, {"stop_sequence", stop_sequence(r.reply)}}},
        {"usage", {{"output_tokens", r.reply.ids.size()}}},
        {"state_id", r.node->id},
        {"state_digest", sha256_text(r.node->digests.id)}});
  send("message_stop", Json::object());
}

}  // namespace

Endpoint messages() {
  return endpoint<MessagesRequest>(
      message_fields().required("max_tokens", "integer", read_required_max_tokens),
      [](Service& service, const Request& request, MessagesRequest a) {
        a.draw.settle(service);
        a.id = "msg_" + random_name();
        if (!a.stream)
          return answer_at_once(service, request,
                                [&](const Caller& caller) { return whole(service, caller, a); });
        return stream_events(service, request, [&service, a](const Caller& caller) -> StreamBody {
          return [&service, a, prompt = check(service, caller, a)](const Caller& talking,
                                                                   Writer& writer) {
            stream(service, talking, a, prompt, writer);
          };
        });
      });
}

Endpoint count_tokens() {
  return endpoint<MessagesRequest>(
      message_fields().field("max_tokens", "integer", read_max_tokens),
      [](Service& service, const Request& request, MessagesRequest a) {
        a.draw.settle(service);
        return answer_at_once(service, request, [&](const Caller& caller) {
          const Rendered prompt = render_prompt(service, caller, a.from, a.messages, a.chat);
          return Json{{"input_tokens", prompt.ids.size()}};
        });
      });
}

}  // namespace stet::serve
