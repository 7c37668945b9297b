// What makes states of states: each answer is the new one; the old one stays as it is.
#include <fmt/format.h>

#include "stet/base/error.hpp"
#include "stet/snapshot/verify.hpp"
#include "tools/serve/routes.hpp"

namespace stet::serve {
namespace {

Json body_of(const Request& request) {
  return request.body.empty() ? Json::object() : parse_body(request.body);
}

Response made(Service& service, const Request& request, const NodePtr& parent, Json operation,
              Session session, bool another = false, const Json& more = Json::object()) {
  const Origin origin =
      service.states.origin(parent) == Origin::uploaded ? Origin::uploaded : Origin::computed;
  Json j = service.states.json(service.states.add(request.client, parent->id, std::move(operation),
                                                  std::move(session), origin, another));
  j.update(more);
  return json_response(j);
}

// Reads the name of a state. Returns nothing where the field is null or absent.
std::optional<std::string> read_name(Fields& f) {
  constexpr size_t kMostBytes = 200;
  std::optional<std::string> name = f.text("name");
  if (name && name->size() > kMostBytes)
    refuse("/name", fmt::format("at most {} bytes", kMostBytes), std::to_string(name->size()));
  return name;
}

}  // namespace

Response list_states(Service& service, const Request& request, const Parts&) {
  Json data = Json::array();
  for (const auto& [node, above] : service.states.conversations(request.client)) {
    Json state = service.states.json(node);
    state["continues"] = above == nullptr ? Json(nullptr) : Json(above->id);
    data.push_back(std::move(state));
  }
  return json_response({{"object", "list"}, {"data", data}});
}

Response create_state(Service& service, const Request& request, const Parts&) {
  const Json body = parse_body(request.body);
  Fields f(body, "");
  check_model(service, f);
  const bool said = f.find("messages") != nullptr;
  const auto text = f.text("text");
  const auto ids = f.ids("ids", service.model->config().vocab_size);
  if ((said ? 1 : 0) + (text ? 1 : 0) + (ids ? 1 : 0) != 1)
    refuse("/messages", "one of messages, text and ids", "none, or more", "missing_field");
  std::vector<Message> messages;
  if (said) messages = read_messages(f, "messages");
  const ChatAsked chat = read_chat(f);
  const DrawOptions draw = read_draw(f, service.model->config().vocab_size);
  const auto name = read_name(f);
  f.finish();
  return answer_at_once(service, request, [&](const Caller& caller) {
    Prompted p =
        said ? prompt_messages(service, caller, messages, chat)
             : prompt_ids(
                   service, caller,
                   ids ? *ids : encode_text(service, caller, *text, Tokenizer::Bos::automatic));
    draw.apply(p.exchange.session().generation(), *service.model);
    p.operation["name"] = "create";
    service.states.count(p.usage);
    const NodePtr node =
        service.states.add(request.client, "", p.operation, std::move(p.exchange.session()));
    if (name) service.states.change(node, name, std::nullopt);
    Json j = service.states.json(node);
    j["usage"] = p.usage.json();
    return j;
  });
}

Response patch_state(Service& service, const Request& request, const Parts& parts) {
  const NodePtr node = node_of(service, request, parts);
  const Json body = parse_body(request.body);
  Fields f(body, "");
  std::optional<std::optional<std::string>> name;
  if (body.contains("name")) name = read_name(f);
  f.find("name");
  const auto pinned = f.boolean("pinned");
  f.finish();
  service.states.change(node, name, pinned);
  return json_response(service.states.json(node));
}

Response delete_state(Service& service, const Request& request, const Parts& parts) {
  service.states.remove(node_of(service, request, parts));
  return json_response({{"id", parts[0]}, {"deleted", true}});
}

namespace {

struct Continue {
  DrawOptions draw;
  std::vector<Message> message;
  std::optional<std::string> text;
  std::optional<std::vector<int32_t>> ids;
  bool retry = false, stream = false, continues = true;
};

Continue read_continue(Service& service, const Json& body) {
  Fields f(body, "");
  Continue c;
  c.draw = read_draw(f, service.model->config().vocab_size);
  c.draw.max_tokens = f.integer("n", 1, kMaxPositions);
  const auto most = f.integer("max_tokens", 1, kMaxPositions);
  if (!c.draw.max_tokens) c.draw.max_tokens = most.value_or(256);
  if (const auto choose = f.integer("choose", 0, service.model->config().vocab_size - 1))
    c.draw.choose = static_cast<int32_t>(*choose);
  if (const Json* message = f.find("message")) {
    const Json list = {{"message", Json::array({*message})}};
    Fields one(list, "");
    c.message = read_messages(one, "message");
  }
  c.text = f.text("text");
  c.ids = f.ids("ids", service.model->config().vocab_size);
  c.retry = f.boolean("retry").value_or(false);
  c.stream = f.boolean("stream").value_or(false);
  c.continues = f.boolean("continue_final_message").value_or(true);
  c.draw.hold_back = true;
  if ((c.message.empty() ? 0 : 1) + (c.text ? 1 : 0) + (c.ids ? 1 : 0) > 1)
    refuse("/message", "one of message, text and ids", "more");
  f.finish();
  return c;
}

// What a state is to go on with, checked: nothing was processed yet.
struct ContinueBegun {
  Prompted prompted;
  std::optional<Conversation::Plan> plan;
  std::vector<int32_t> ids;
};

void check_reply(const Prompted& p, const Continue& c) {
  const Session& session = p.exchange.session();
  const std::vector<Turn>& turns = session.generation().turns;
  const bool ended = !turns.empty() && !turns.back().open;
  if (ended && (p.exchange.conversation() != nullptr || !c.draw.ignore_eos))
    throw RequestError(400, "reply_has_ended",
                       "expected a message, or a reply that was cut, found one that has ended");
  if (session.size() == session.capacity())
    throw RequestError(
        400, "context_length_exceeded",
        fmt::format("expected fewer than {} tokens, found {}", session.capacity(), session.size()));
}

ContinueBegun begin_continue(Service& service, const Caller& caller, const NodePtr& node,
                             const Continue& c) {
  ContinueBegun begun{resume(service, caller, node), std::nullopt, {}};
  Prompted& p = begun.prompted;
  p.operation = {{"name", c.draw.choose        ? "choose"
                          : c.retry            ? "retry"
                          : !c.message.empty() ? "messages"
                                               : "continue"}};
  if (c.draw.choose) p.operation["id"] = *c.draw.choose;
  if (c.retry && p.exchange.conversation() == nullptr)
    throw RequestError(400, "not_a_conversation", "/retry: expected a conversation, found raw text",
                       "/retry");
  if (c.retry) {
    p.exchange.conversation()->retry();
    p.told.clear();
  }
  c.draw.check(service, p.exchange.session().generation());
  if (!c.message.empty()) {
    begun.plan = plan_more(service, caller, p, c.message, c.continues);
  } else if (c.text || c.ids) {
    begun.ids = c.ids ? *c.ids : encode_text(service, caller, *c.text, Tokenizer::Bos::off);
    check_room(p.exchange.session(), begun.ids);
  } else {
    check_reply(p, c);
  }
  return begun;
}

Json continued(Service& service, const Caller& caller, ContinueBegun& begun, const Continue& c,
               Writer* writer) {
  const double start = tool::seconds();
  Prompted& p = begun.prompted;
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

}  // namespace

Response continue_state(Service& service, const Request& request, const Parts& parts) {
  const NodePtr node = node_of(service, request, parts);
  const Continue c = read_continue(service, body_of(request));
  if (!c.stream)
    return answer_at_once(service, request, [&](const Caller& caller) {
      ContinueBegun begun = begin_continue(service, caller, node, c);
      return continued(service, caller, begun, c, nullptr);
    });
  return stream_events(service, request, [&service, node, c](const Caller& caller) -> StreamBody {
    const auto begun = std::make_shared<ContinueBegun>(begin_continue(service, caller, node, c));
    return [&service, begun, c](const Caller& talking, Writer& writer) {
      writer.event(continued(service, talking, *begun, c, &writer));
      writer.write("data: [DONE]\n\n");
    };
  });
}

Response fork_state(Service& service, const Request& request, const Parts& parts) {
  const NodePtr node = node_of(service, request, parts);
  const Json body = body_of(request);
  Fields(body, "").finish();
  Json operation = {{"name", "fork"}};
  if (node->operation.contains("told")) operation["told"] = true;
  return made(service, request, node, operation, service.open(service.caller(request), node), true);
}

Response rewind_state(Service& service, const Request& request, const Parts& parts) {
  const NodePtr node = node_of(service, request, parts);
  const Json body = parse_body(request.body);
  Fields f(body, "");
  const auto tokens = f.integer("tokens", 0, kMaxPositions),
             message = f.integer("message", 0, node->messages - 1);
  f.finish();
  if (tokens.has_value() == message.has_value())
    refuse("/tokens", "one of tokens and message", tokens ? "both" : "neither", "missing_field");
  Session session = service.open(service.caller(request), node);
  if (tokens) {
    session.rewind(*tokens);
    return made(service, request, node, {{"name", "rewind"}, {"tokens", *tokens}},
                std::move(session));
  }
  Conversation conversation(std::move(session), service.tokenizer);
  const auto k = static_cast<size_t>(*message);
  const std::vector<Message>& all = conversation.messages();
  const bool reply = all[k].generated;
  if (!reply && all[k].role != "user")
    refuse("/message", "a message of the user, or a reply that was drawn", all[k].role);
  const auto users = detail::count_users({all.begin() + static_cast<std::ptrdiff_t>(k), all.end()});
  if (users > 0) conversation.rewind(users);
  if (reply) conversation.retry();
  return made(service, request, node, {{"name", "rewind"}, {"message", k}},
              std::move(conversation.session()));
}

Response prune_state(Service& service, const Request& request, const Parts& parts) {
  const NodePtr node = node_of(service, request, parts);
  const Json body = parse_body(request.body);
  Fields f(body, "");
  PruneOptions o;
  o.sinks = f.integer("sinks", 0, kMaxPositions).value_or(0);
  const auto last = f.integer("keep_last", 0, kMaxPositions);
  if (!last) refuse("/keep_last", "a number of tokens", "nothing", "missing_field");
  o.keep_last = *last;
  o.shift = f.boolean("shift").value_or(false);
  f.finish();
  Session session = service.open(service.caller(request), node);
  const int64_t pruned = session.prune(o);
  return made(
      service, request, node,
      {{"name", "prune"}, {"sinks", o.sinks}, {"keep_last", o.keep_last}, {"shift", o.shift}},
      std::move(session), false, {{"pruned", pruned}});
}

Response edit_state(Service& service, const Request& request, const Parts& parts) {
  const NodePtr node = node_of(service, request, parts);
  const Json body = parse_body(request.body);
  Fields f(body, "");
  const auto index = f.integer("message", 0, node->messages - 1);
  if (!index) refuse("/message", "the index of a message", "nothing", "missing_field");
  const std::string content = f.required_text("content");
  f.finish();
  return answer_at_once(service, request, [&](const Caller& caller) {
    Prompted p = resume(service, caller, node);
    Conversation* conversation = p.exchange.conversation();
    if (conversation == nullptr)
      throw RequestError(400, "not_a_conversation", "expected a conversation, found raw text");
    std::vector<Message> messages = conversation->messages();
    messages.resize(static_cast<size_t>(*index) + 1);
    messages.back().content = content;
    messages.back().generated = false;
    const Conversation::Plan plan = conversation->prepare(std::move(messages));
    conversation->begin(plan);
    service.engine.process(conversation->session(), Conversation::to_process(plan), caller.gone);
    conversation->prompted(plan);
    Json j = service.states.json(service.states.add(request.client, node->id,
                                                    {{"name", "edit"}, {"message", *index}},
                                                    std::move(conversation->session())));
    j["usage"] = Usage{plan.report.kept, plan.report.recomputed, plan.report.added,
                       "up to the message that was edited"}
                     .json();
    return j;
  });
}

namespace {

// Computed again by the passes that all share, so that it takes nobody's pace.
Json verified(Service& service, const Caller& caller, const NodePtr& node, Session& session,
              Writer* writer) {
  const double start = tool::seconds();
  const int64_t of = session.transcript_size();
  int64_t before = 0, told = -1;
  const auto tell = [&](int64_t done) {
    if (writer == nullptr || before + done == told) return;
    told = before + done;
    writer->event({{"done", told}, {"of", of}});
  };
  const auto append = [&](Session& s, std::span<const int32_t> ids) {
    service.engine.process(std::vector<BatchEntry>{{&s, ids}}, caller.gone, tell);
    before += static_cast<int64_t>(ids.size());
    tell(0);
  };
  const VerifyReport report = verify(session, nullptr, append);
  service.verified_tokens += report.tokens;
  const StateDigests digests = digests_of(session);
  const bool same =
      report.whole() && digests.id == node->digests.id && digests.state == node->digests.state;
  if (same) service.states.verified(node);
  Json j = {{"same_bits", same},
            {"difference", report                    ? Json(report->text())
                           : report.whole() && !same ? Json("another state is named so")
                                                     : Json(nullptr)},
            {"tokens", report.tokens},
            {"proved",
             {{"blocks", report.blocks},
              {"of", report.of},
              {"logits", report.logits},
              {"whole", report.whole()}}},
            {"digest", sha256_text(digests.id)},
            {"digests", tool::digests_json(digests)},
            {"seconds", tool::seconds() - start}};
  if (report.limit) {
    j["proved"]["from"] = report.limit->position;
    j["proved"]["reason"] = report.limit->reason;
  }
  return j;
}

}  // namespace

Response verify_state(Service& service, const Request& request, const Parts& parts) {
  const NodePtr node = node_of(service, request, parts);
  const Json body = body_of(request);
  Fields f(body, "");
  const bool stream = f.boolean("stream").value_or(false);
  f.finish();
  if (!stream)
    return answer_at_once(service, request, [&](const Caller& caller) {
      Session session = service.open(caller, node);
      return verified(service, caller, node, session, nullptr);
    });
  return stream_events(service, request, [&service, node](const Caller& caller) -> StreamBody {
    const auto session = std::make_shared<Session>(service.open(caller, node));
    return [&service, node, session](const Caller& talking, Writer& writer) {
      writer.event(verified(service, talking, node, *session, &writer));
      writer.write("data: [DONE]\n\n");
    };
  });
}

}  // namespace stet::serve
