// Continuing a state with replies, whole or by a number of tokens.
#include <fmt/format.h>

#include "stet/base/error.hpp"
#include "tools/serve/routes.hpp"

namespace stet::serve {
namespace {

struct ContinueRequest {
  DrawOptions draw;
  std::vector<Message> message;
  std::optional<std::string> text;
  std::optional<std::vector<int32_t>> ids;
  std::optional<int64_t> tokens, max_tokens;  // two names of one number
  bool retry = false, stream = false, continues = true;
};

void read_next_message(ContinueRequest& c, const Field& f, const BodyContext&) {
  if (f.value() != nullptr) c.message = {read_message(*f.value(), f.pointer())};
}

BodyFields<ContinueRequest> continue_fields() {
  using C = ContinueRequest;
  return BodyFields<C>()
      .part(&C::draw, draw_fields())
      .integer("n", &C::tokens, 1, kMaxPositions)
      .integer("max_tokens", &C::max_tokens, 1, kMaxPositions)
      .field("choose", "integer",
             [](C& c, const Field& f, const BodyContext& context) {
               const int64_t vocab_size = context.service.model->config().vocab_size;
               if (const auto id = f.integer(0, vocab_size - 1))
                 c.draw.choose = static_cast<int32_t>(*id);
             })
      .field("message", "object", read_next_message)
      .text("text", &C::text)
      .field("ids", "array",
             [](C& c, const Field& f, const BodyContext& context) {
               c.ids = f.ids(context.service.model->config().vocab_size);
             })
      .boolean("retry", &C::retry)
      .boolean("stream", &C::stream)
      .boolean("continue_final_message", &C::continues);
}

// The checked continuation of a state, not processed yet.
struct CheckedContinue {
  PreparedPrompt prompted;
  std::optional<Conversation::Plan> plan;
  std::vector<int32_t> ids;
};

void check_reply(const PreparedPrompt& p, const ContinueRequest& c) {
  const Session& session = p.exchange.session();
  const std::vector<Turn>& turns = session.generation().turns;
  const bool ended = !turns.empty() && !turns.back().open;
  if (ended && (p.exchange.conversation() != nullptr || !c.draw.ignore_eos))
    throw RequestError(400, "reply_has_ended",
                       "the last reply has ended: send a message, or retry");
  if (session.size() == session.capacity())
    throw RequestError(400, "context_length_exceeded",
                       fmt::format("the context of {} tokens is full (--ctx)", session.capacity()));
}

CheckedContinue begin_continue(Service& service, const Caller& caller, const NodePtr& node,
                               const ContinueRequest& c) {
  service.states.check_room(caller.client);
  CheckedContinue begun{resume(service, caller, node), std::nullopt, {}};
  PreparedPrompt& p = begun.prompted;
  p.operation = {{"name", c.draw.choose        ? "choose"
                          : c.retry            ? "retry"
                          : !c.message.empty() ? "messages"
                                               : "continue"}};
  if (c.draw.choose) p.operation["id"] = *c.draw.choose;
  if (c.retry && p.exchange.conversation() == nullptr)
    throw RequestError(400, "not_a_conversation",
                       "/retry: this state holds raw text, which has no reply to draw again",
                       "/retry");
  if (c.retry) {
    const std::vector<Message>& all = p.exchange.conversation()->messages();
    if (all.empty() || !all.back().generated) refuse("/retry", "a reply to draw again", "none");
    p.exchange.conversation()->retry();
    p.known_text.clear();
  }
  c.draw.check(service, p.exchange.session().generation());
  if (!c.message.empty()) {
    begun.plan = for_field("/message",
                           [&] { return plan_more(service, caller, p, c.message, c.continues); });
  } else if (c.text || c.ids) {
    begun.ids = c.ids ? *c.ids : encode_text(service, caller, *c.text, Tokenizer::Bos::off);
    check_room(p.exchange.session(), begun.ids);
  } else {
    check_reply(p, c);
  }
  return begun;
}

Json continued(Service& service, const Caller& caller, CheckedContinue& begun,
               const ContinueRequest& c, Writer* writer) {
  const double start = tool::seconds();
  PreparedPrompt& p = begun.prompted;
  if (begun.plan)
    process_plan(service, caller, p, *begun.plan);
  else if (c.text || c.ids)
    append_text(service, caller, p, begun.ids);
  const ReplyResult r = draw_replies(service, caller, p, c.draw, [&](const ReplyPiece& piece) {
    return writer == nullptr || writer->event({{"text", piece.text}, {"ids", piece.ids}});
  })[0];
  return {{"state", service.states.json(r.node)},
          {"text", r.reply.text},
          {"ids", r.reply.ids},
          {"stop", stop_reason_name(r.reply.stop)},
          {"usage", usage_json(p.usage, r.reply.ids.size())},
          {"seconds", tool::seconds() - start}};
}

Response go_on(Service& service, const Request& request, const NodePtr& node, ContinueRequest c) {
  c.draw.hold_back = true;
  if ((c.message.empty() ? 0 : 1) + (c.text ? 1 : 0) + (c.ids ? 1 : 0) > 1)
    throw RequestError(400, "invalid_value", "give only one of message, text and ids", "/message");
  if (c.tokens && c.max_tokens)
    throw RequestError(400, "invalid_value",
                       "give only one of max_tokens and n, which is a number of tokens here", "/n");
  c.draw.max_tokens = c.tokens ? c.tokens : c.max_tokens.value_or(256);
  if (!c.stream)
    return answer_at_once(service, request, [&](const Caller& caller) {
      CheckedContinue begun = begin_continue(service, caller, node, c);
      return continued(service, caller, begun, c, nullptr);
    });
  return stream_events(service, request, [&service, node, c](const Caller& caller) -> StreamBody {
    const auto begun = std::make_shared<CheckedContinue>(begin_continue(service, caller, node, c));
    return [&service, begun, c](const Caller& talking, Writer& writer) {
      writer.event(continued(service, talking, *begun, c, &writer));
      writer.write("data: [DONE]\n\n");
    };
  });
}

}  // namespace

Endpoint continue_state() { return state_endpoint(continue_fields(), go_on, Presence::optional); }

}  // namespace stet::serve
