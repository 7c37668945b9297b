// Operations that make a state from another. Each answers with the new one; the old one stays.
#include <fmt/format.h>

#include "stet/base/error.hpp"
#include "stet/snapshot/verify.hpp"
#include "tools/serve/routes.hpp"

namespace stet::serve {
namespace {

Response made(Service& service, const Request& request, const Parent& parent, Json operation,
              Session session, bool another = false, const Json& more = Json::object()) {
  Json j = service.states.json(service.states.add(request.client, parent, std::move(operation),
                                                  std::move(session), Origin::computed, another));
  j.update(more);
  return json_response(j);
}

// Reads the name of a state. Returns nothing if the field is null or absent.
std::optional<std::string> read_name(const Field& f) {
  constexpr size_t kMostBytes = 200;
  std::optional<std::string> name = f.text();
  if (name && name->size() > kMostBytes)
    refuse(f.pointer(), fmt::format("at most {} bytes", kMostBytes), std::to_string(name->size()));
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

namespace {

struct CreateRequest {
  std::optional<std::vector<Message>> messages;
  std::optional<std::string> text, name;
  std::optional<std::vector<int32_t>> ids;
  ChatOptions chat;
  DrawOptions draw;
};

BodyFields<CreateRequest> create_fields() {
  using C = CreateRequest;
  return BodyFields<C>()
      .field("model", "string",
             [](C&, const Field& f, const BodyContext& context) { read_model(f, context); })
      .text("text", &C::text)
      .field("ids", "array",
             [](C& c, const Field& f, const BodyContext& context) {
               c.ids = f.ids(context.service.model->config().vocab_size);
             })
      .field("messages", "array",
             [](C& c, const Field& f, const BodyContext&) {
               const int ways = (f.value() ? 1 : 0) + (c.text ? 1 : 0) + (c.ids ? 1 : 0);
               if (ways != 1)
                 throw RequestError(400, "missing_field", "give one of messages, text and ids",
                                    f.pointer());
               if (f.value() != nullptr) c.messages = read_messages(f);
             })
      .part(&C::chat, chat_fields())
      .part(&C::draw, draw_fields())
      .field("name", "string",
             [](C& c, const Field& f, const BodyContext&) { c.name = read_name(f); });
}

Response create(Service& service, const Request& request, CreateRequest c) {
  return answer_at_once(service, request, [&](const Caller& caller) {
    if (c.text) c.ids = encode_text(service, caller, *c.text, Tokenizer::Bos::automatic);
    PreparedPrompt p = c.messages ? prompt_messages(service, caller, *c.messages, c.chat)
                                  : prompt_ids(service, caller, *c.ids);
    c.draw.apply(p.exchange.session().generation(), *service.model);
    p.operation["name"] = "create";
    service.states.count(p.usage);
    const NodePtr node =
        service.states.add(request.client, {}, p.operation, std::move(p.exchange.session()));
    if (c.name) service.states.change(node, c.name, std::nullopt);
    Json j = service.states.json(node);
    j["usage"] = p.usage.json();
    return j;
  });
}

struct PatchRequest {
  std::optional<std::optional<std::string>> name;  // null removes the name
  std::optional<bool> pinned;
};

Response patch(Service& service, const Request&, const NodePtr& node, PatchRequest asked) {
  service.states.change(node, asked.name, asked.pinned);
  return json_response(service.states.json(node));
}

}  // namespace

Endpoint create_state() { return endpoint(create_fields(), create); }

Endpoint patch_state() {
  using P = PatchRequest;
  return state_endpoint(
      BodyFields<P>()
          .field("name", "string",
                 [](P& asked, const Field& f, const BodyContext&) {
                   if (f.present()) asked.name = read_name(f);
                 })
          .field("pinned", "boolean",
                 [](P& asked, const Field& f, const BodyContext&) { asked.pinned = f.boolean(); }),
      patch);
}

Response delete_state(Service& service, const Request& request, const Parts& parts) {
  service.states.remove(node_of(service, request, parts));
  return json_response({{"id", parts[0]}, {"deleted", true}});
}

// ---------------------------------------------------------------- operations

namespace {

struct ForkRequest {};

// Adds to the operation of a state that ends like another one what is known of the text there.
Json with_same_end(Json operation, const Node& as) {
  for (const char* name : {"told", "prefilled"}) {
    if (as.operation.contains(name)) operation[name] = as.operation[name];
  }
  return operation;
}

Response fork(Service& service, const Request& request, const NodePtr& node, ForkRequest) {
  const Json operation = with_same_end({{"name", "fork"}}, *node);
  const Parent parent = service.states.as_parent(node);
  return respond_from(service, request, {node}, [&](std::vector<Session>& sessions) {
    return made(service, request, parent, operation, std::move(sessions[0]), true);
  });
}

// Reads the index of a message of the state.
std::optional<int64_t> read_message_index(const Field& f, const BodyContext& context) {
  if (f.value() != nullptr && context.node->messages == 0)
    throw RequestError(400, "not_a_conversation",
                       f.pointer() + ": this state holds raw text, which has no messages",
                       f.pointer());
  return f.integer(0, context.node->messages - 1);
}

struct RewindRequest {
  std::optional<int64_t> tokens, message;
};

BodyFields<RewindRequest> rewind_fields() {
  return BodyFields<RewindRequest>()
      .integer("tokens", &RewindRequest::tokens, 0, kMaxPositions)
      .field("message", "integer",
             [](RewindRequest& r, const Field& f, const BodyContext& context) {
               r.message = read_message_index(f, context);
             });
}

Response rewound(Service& service, const Request& request, const NodePtr& node,
                 const Parent& parent, Session session, const RewindRequest& r) {
  if (r.tokens) {
    for_field("/tokens", [&] { session.rewind(*r.tokens); });
    Json operation = {{"name", "rewind"}, {"tokens", *r.tokens}};
    if (*r.tokens == node->positions) operation = with_same_end(std::move(operation), *node);
    return made(service, request, parent, std::move(operation), std::move(session));
  }
  Conversation conversation(std::move(session), service.tokenizer);
  const auto k = static_cast<size_t>(*r.message);
  const std::vector<Message>& all = conversation.messages();
  const bool reply = all[k].generated;
  if (!reply && all[k].role != "user")
    refuse("/message", "the index of a user message or of a drawn reply", all[k].role);
  const auto users = detail::count_users({all.begin() + static_cast<std::ptrdiff_t>(k), all.end()});
  if (users > 0) conversation.rewind(users);
  if (reply) conversation.retry();
  return made(service, request, parent, {{"name", "rewind"}, {"message", k}},
              std::move(conversation.session()));
}

Response rewind(Service& service, const Request& request, const NodePtr& node, RewindRequest r) {
  if (r.tokens.has_value() == r.message.has_value())
    throw RequestError(400, "missing_field", "give one of tokens and message", "/tokens");
  const Parent parent = service.states.as_parent(node);
  return respond_from(service, request, {node}, [&](std::vector<Session>& sessions) {
    return rewound(service, request, node, parent, std::move(sessions[0]), r);
  });
}

BodyFields<PruneOptions> prune_fields() {
  using P = PruneOptions;
  return BodyFields<P>()
      .field("sinks", "integer",
             [](P& o, const Field& f, const BodyContext&) {
               o.sinks = f.integer(0, kMaxPositions).value_or(0);
             })
      .required("keep_last", "integer",
                [](P& o, const Field& f, const BodyContext&) {
                  const auto last = f.integer(0, kMaxPositions);
                  if (!last) refuse(f.pointer(), "a number of tokens", "nothing", "missing_field");
                  o.keep_last = *last;
                })
      .boolean("shift", &P::shift);
}

Response prune(Service& service, const Request& request, const NodePtr& node, PruneOptions o) {
  if (service.model->config().recurrence.kind != Recurrence::Kind::none)
    throw RequestError(400, "recurrent_model",
                       "recurrent layers cannot forget tokens; make a state of those that stay");
  const Parent parent = service.states.as_parent(node);
  return respond_from(service, request, {node}, [&](std::vector<Session>& sessions) {
    const int64_t pruned = sessions[0].prune(o);
    Json operation = {
        {"name", "prune"}, {"sinks", o.sinks}, {"keep_last", o.keep_last}, {"shift", o.shift}};
    if (pruned == 0 || o.keep_last > 0) operation = with_same_end(std::move(operation), *node);
    return made(service, request, parent, std::move(operation), std::move(sessions[0]), false,
                {{"pruned", pruned}});
  });
}

struct EditRequest {
  int64_t message = 0;
  std::string content;
};

BodyFields<EditRequest> edit_fields() {
  return BodyFields<EditRequest>()
      .required("message", "integer",
                [](EditRequest& e, const Field& f, const BodyContext& context) {
                  const auto index = read_message_index(f, context);
                  if (!index)
                    refuse(f.pointer(), "the index of a message", "nothing", "missing_field");
                  e.message = *index;
                })
      .required("content", "string", [](EditRequest& e, const Field& f, const BodyContext&) {
        e.content = f.required_text();
      });
}

Response edit(Service& service, const Request& request, const NodePtr& node, EditRequest e) {
  return answer_at_once(service, request, [&](const Caller& caller) {
    PreparedPrompt p = resume(service, caller, node);
    Conversation* conversation = p.exchange.conversation();
    if (conversation == nullptr)
      throw RequestError(400, "not_a_conversation",
                         "this state holds raw text, which has no messages to edit");
    std::vector<Message> messages = conversation->messages();
    messages.resize(static_cast<size_t>(e.message) + 1);
    messages.back().content = e.content;
    messages.back().generated = false;
    const Conversation::Plan plan = for_field(
        "/content", [&] { return plan_edit(service, caller, *conversation, std::move(messages)); });
    conversation->begin(plan);
    if (conversation->session().size() == 0) p.parent.origin = Origin::computed;
    service.engine.process(conversation->session(), Conversation::to_process(plan),
                           caller.cancelled);
    conversation->prompted(plan);
    Json j = service.states.json(service.states.add(request.client, p.parent,
                                                    {{"name", "edit"}, {"message", e.message}},
                                                    std::move(conversation->session())));
    j["usage"] = Usage{plan.report.kept, plan.report.recomputed, plan.report.added,
                       "up to the message that was edited"}
                     .json();
    return j;
  });
}

}  // namespace

Endpoint fork_state() {
  return state_endpoint(BodyFields<ForkRequest>(), fork, Presence::optional);
}
Endpoint rewind_state() { return state_endpoint(rewind_fields(), rewind); }
Endpoint prune_state() { return state_endpoint(prune_fields(), prune); }
Endpoint edit_state() { return state_endpoint(edit_fields(), edit); }

// ---------------------------------------------------------------- verify

namespace {

// Computes the state again in the shared passes, so that other replies keep their pace.
Json verified(Service& service, const Caller& caller, const NodePtr& node, Session& session,
              Writer* writer) {
  const double start = tool::seconds();
  const int64_t of = session.transcript_size();
  int64_t before = 0, reported = -1;
  const auto tell = [&](int64_t done) {
    if (writer == nullptr || before + done == reported) return;
    reported = before + done;
    writer->event({{"done", reported}, {"of", of}});
  };
  const auto append = [&](Session& s, std::span<const int32_t> ids) {
    service.engine.process(std::vector<BatchEntry>{{&s, ids}}, caller.cancelled, tell);
    before += static_cast<int64_t>(ids.size());
    tell(0);
  };
  const VerifyReport report = stet::verify(session, nullptr, append);
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

struct VerifyRequest {
  bool stream = false;
};

Response verify(Service& service, const Request& request, const NodePtr& node,
                VerifyRequest asked) {
  if (!asked.stream)
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

}  // namespace

Endpoint verify_state() {
  return state_endpoint(BodyFields<VerifyRequest>().boolean("stream", &VerifyRequest::stream),
                        verify, Presence::optional);
}

}  // namespace stet::serve
