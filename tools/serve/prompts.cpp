// Prepares a session for a reply from a request's messages, text or state.
#include <fmt/format.h>

#include "stet/base/error.hpp"
#include "tools/serve/routes.hpp"

namespace stet::serve {
namespace {

// Throws if the tokens do not fit into the context with `room` positions left for a reply.
void check_positions(const Session& session, int64_t positions, int64_t room) {
  if (positions + room <= session.capacity()) return;
  throw RequestError(400, "context_length_exceeded",
                     fmt::format("the prompt has {} tokens and must have fewer than {} (--ctx)",
                                 positions, session.capacity() + 1 - room));
}

// Throws for a text too long to fit even if each token were the longest one.
void check_bytes(Service& service, size_t bytes) {
  const auto capacity = static_cast<size_t>(Session(service.model, service.session).capacity());
  if (bytes <= capacity) return;
  const size_t longest = service.longest_token(), tokens = (bytes + longest - 1) / longest;
  if (tokens <= capacity) return;
  throw RequestError(
      400, "context_length_exceeded",
      fmt::format(
          "the prompt of {} bytes has at least {} tokens and must have fewer than {} (--ctx)",
          bytes, tokens, capacity));
}

// Resets the settings of an earlier request to the model's.
void use_model_settings(const Service& service, Session& session) {
  const GenerationState own = default_generation(*service.model);
  GenerationState& state = session.generation();
  state.sampling = own.sampling;
  state.stop_ids = own.stop_ids;
  state.stop_strings.clear();
}

void run_plan(Service& service, const Caller& caller, PreparedPrompt& p,
              const Conversation::Plan& plan) {
  Conversation& conversation = *p.exchange.conversation();
  conversation.begin(plan);
  if (conversation.session().size() == 0) p.parent.origin = Origin::computed;
  service.engine.process(conversation.session(), Conversation::to_process(plan), caller.cancelled);
  conversation.prompted(plan);
  p.known_text.clear();
  if (plan.begun == 0) return;
  // The decoder may hold back the end of the text with which the reply begins.
  p.known_text = held_text(conversation.session().generation(), service.tokenizer.get());
  if (!p.known_text.empty()) p.operation["told"] = true;
  p.operation["prefilled"] = plan.messages.back().content.size();
}

PreparedPrompt prompt_plan(Service& service, const Caller& caller, Conversation::Plan plan,
                           const ChatState& chat, size_t count) {
  Usage usage;
  Session session =
      service.states.longest_prefix(caller.client, plan.ids, service.appender(caller), usage);
  session.generation() = default_generation(*service.model);
  session.chat() = chat;
  plan.compare(session.transcript());
  PreparedPrompt p{Exchange(std::move(session), service.tokenizer, Exchange::Kind::conversation),
                   usage,
                   {},
                   {{"name", "messages"}, {"count", count}}};
  run_plan(service, caller, p, plan);
  const int64_t size = p.exchange.session().size();
  // Log the turn as if all tokens had been processed now: a state does not depend on reuse.
  p.exchange.session().generation().turns = {{0, size - plan.begun, size, true}};
  p.usage.fresh = static_cast<int64_t>(plan.ids.size()) - p.usage.reused;
  return p;
}

// Appends tokens of text to a session.
void process_ids(Service& service, const Caller& caller, PreparedPrompt& p,
                 const TokenPrompt& asked) {
  Session& session = p.exchange.session();
  const int64_t at = session.size();
  if (asked.top_logprobs < 0)
    service.engine.process(session, asked.ids, caller.cancelled);
  else
    p.prompt_logprobs = process_scored(service, caller, session, asked.ids,
                                       static_cast<size_t>(asked.top_logprobs));
  open_prompt_turn(session, at);
  p.known_text.clear();
  p.usage.fresh += static_cast<int64_t>(asked.ids.size());
}

PreparedPrompt prompt_fresh_ids(Service& service, const Caller& caller, const TokenPrompt& asked) {
  Usage usage;
  const bool scored = asked.top_logprobs >= 0;
  usage.reason = "log-probabilities were asked of all tokens";
  Session session = scored ? Session(service.model, service.session)
                           : service.states.longest_prefix(caller.client, asked.ids,
                                                           service.appender(caller), usage);
  session.generation() = default_generation(*service.model);
  const auto known = static_cast<size_t>(session.size());
  PreparedPrompt p{Exchange(std::move(session), service.tokenizer, Exchange::Kind::raw),
                   usage,
                   {},
                   {{"name", "create"}, {"tokens", asked.ids.size()}}};
  process_ids(service, caller, p,
              {{asked.ids.begin() + static_cast<std::ptrdiff_t>(known), asked.ids.end()},
               asked.room,
               asked.top_logprobs});
  p.exchange.session().generation().turns.clear();
  open_prompt_turn(p.exchange.session(), 0);
  return p;
}

Conversation new_conversation(const Service& service, const ChatOptions& chat) {
  service.need_tokenizer();
  Session empty(service.model, service.session);
  empty.chat() = chat.state;
  return Conversation(std::move(empty), service.tokenizer);
}

}  // namespace

// ---------------------------------------------------------------- tokens

TokenizeTurn::TokenizeTurn(Service& service, const Caller& caller, size_t bytes) {
  constexpr size_t kLong = size_t{64} << 10;
  if (bytes < kLong) return;
  std::unique_lock lock(service.tokenizing.mutex);
  while (service.tokenizing.busy) {
    service.tokenizing.free.wait_for(lock, std::chrono::milliseconds(50));
    lock.unlock();
    if (caller.cancelled()) throw Cancelled();
    lock.lock();
  }
  service.tokenizing.busy = true;
  held_ = &service.tokenizing;
}

TokenizeTurn::~TokenizeTurn() {
  if (held_ == nullptr) return;
  const std::lock_guard lock(held_->mutex);
  held_->busy = false;
  held_->free.notify_one();
}

std::vector<int32_t> encode_text(Service& service, const Caller& caller, const std::string& text,
                                 Tokenizer::Bos bos) {
  const Tokenizer& tokenizer = service.need_tokenizer();
  check_bytes(service, text.size());
  const TokenizeTurn turn(service, caller, text.size());
  std::vector<int32_t> ids = tokenizer.encode(text, bos);
  if (caller.cancelled()) throw Cancelled();
  return ids;
}

// ---------------------------------------------------------------- checking

namespace {

// Lays out messages as tokens; the last `more` of them are new. Does not check that they fit.
Conversation::Plan lay_out(Service& service, const Caller& caller, const Conversation& conversation,
                           std::vector<Message> messages, size_t more, bool continues) {
  size_t bytes = 0;
  for (size_t i = messages.size() - more; i < messages.size(); ++i)
    bytes += messages[i].content.size();
  check_bytes(service, bytes);
  const TokenizeTurn turn(service, caller, bytes);
  bool begun = continues && more > 0 && messages.back().role == "assistant";
  if (begun && messages.back().content.empty()) {  // an empty beginning of a reply
    messages.pop_back();
    begun = false;
  }
  const std::string last = messages.empty() ? "" : messages.back().content;
  std::optional<Conversation::Plan> plan;
  try {
    plan = conversation.lay_out(std::move(messages), begun);
  } catch (const Error& e) {
    if (e.expected != "what the template accepts") throw;  // raise_exception() of a template
    throw RequestError(400, "refused_by_template",
                       fmt::format("/messages: the chat template of {} refuses them: {}",
                                   service.name, printable(e.found)),
                       "/messages");
  }
  if (!plan)
    throw RequestError(
        400, "altered_by_template",
        fmt::format("/messages: the chat template of {} alters the last message of the assistant, "
                    "{}, so the reply cannot continue it; send \"continue_final_message\": false "
                    "to begin a new turn",
                    service.name, printable(tool::dump(Json(last)), 60)),
        "/messages");
  if (caller.cancelled()) throw Cancelled();
  return *std::move(plan);
}

Conversation::Plan plan_messages(Service& service, const Caller& caller,
                                 const Conversation& conversation, std::vector<Message> messages,
                                 size_t more, bool continues) {
  Conversation::Plan plan =
      lay_out(service, caller, conversation, std::move(messages), more, continues);
  const Session& session = conversation.session();
  check_positions(session, static_cast<int64_t>(plan.ids.size()) - shifted_out(session.prunes()),
                  1);
  return plan;
}

// Returns the messages of a state, followed by `more`.
std::vector<Message> with_more(const PreparedPrompt& p, std::vector<Message> more) {
  if (p.exchange.conversation() == nullptr)
    throw RequestError(400, "not_a_conversation",
                       "this state holds raw text; send text or ids instead of messages");
  std::vector<Message> messages = p.exchange.conversation()->messages();
  std::move(more.begin(), more.end(), std::back_inserter(messages));
  return messages;
}

// Throws for settings of the template that are not those of the state, whose tokens they gave.
void check_chat(const PreparedPrompt& p, const ChatOptions& asked) {
  const ChatState& chat = p.exchange.session().chat();
  if (asked.state.now != 0 && asked.state.now != chat.now)
    refuse("/now", fmt::format("the time of the state, {}, or none", chat.now),
           std::to_string(asked.state.now), "unsupported_field");
  const std::string& variables = asked.state.variables;
  if (!variables.empty() && variables != "{}" && variables != chat.variables)
    refuse("/template_variables", "the variables of the state, or none", printable(variables, 60),
           "unsupported_field");
}

}  // namespace

Conversation::Plan plan_more(Service& service, const Caller& caller, const PreparedPrompt& p,
                             std::vector<Message> more, bool continues) {
  const size_t count = more.size();
  std::vector<Message> messages = with_more(p, std::move(more));
  return plan_messages(service, caller, *p.exchange.conversation(), std::move(messages), count,
                       continues);
}

Conversation::Plan plan_edit(Service& service, const Caller& caller,
                             const Conversation& conversation, std::vector<Message> messages) {
  return plan_messages(service, caller, conversation, std::move(messages), 1, false);
}

void check_room(const Session& session, std::span<const int32_t> ids, int64_t room) {
  detail::check_ids(ids, session.model().config().vocab_size);
  check_positions(session, session.size() + static_cast<int64_t>(ids.size()), room);
}

CheckedPrompt check_messages(Service& service, const Caller& caller, const NodePtr& node,
                             std::vector<Message> messages, const ChatOptions& chat) {
  service.states.check_room(caller.client);
  if (node == nullptr) {
    const size_t count = messages.size();
    const Conversation fresh = new_conversation(service, chat);
    return
        [&service, count, state = fresh.session().chat(),
         plan = plan_messages(service, caller, fresh, std::move(messages), count, chat.continues)](
            const Caller& c) { return prompt_plan(service, c, plan, state, count); };
  }
  service.need_tokenizer();
  const auto p = std::make_shared<PreparedPrompt>(resume(service, caller, node));
  check_chat(*p, chat);
  use_model_settings(service, p->exchange.session());
  return [&service, p, plan = plan_more(service, caller, *p, std::move(messages), chat.continues)](
             const Caller& c) {
    process_plan(service, c, *p, plan);
    return std::move(*p);
  };
}

Rendered render_prompt(Service& service, const Caller& caller, const NodePtr& node,
                       std::vector<Message> messages, const ChatOptions& chat) {
  const size_t count = messages.size();
  if (node == nullptr) {
    const Conversation fresh = new_conversation(service, chat);
    Conversation::Plan plan =
        lay_out(service, caller, fresh, std::move(messages), count, chat.continues);
    return {std::move(plan.text), std::move(plan.ids), fresh.session().chat().now};
  }
  service.need_tokenizer();
  const PreparedPrompt p = resume(service, caller, node);
  check_chat(p, chat);
  messages = with_more(p, std::move(messages));
  const Conversation& conversation = *p.exchange.conversation();
  Conversation::Plan plan =
      lay_out(service, caller, conversation, std::move(messages), count, chat.continues);
  return {std::move(plan.text), std::move(plan.ids), conversation.session().chat().now};
}

CheckedPrompt check_ids(Service& service, const Caller& caller, const NodePtr& node,
                        TokenPrompt asked) {
  service.states.check_room(caller.client);
  if (node == nullptr) {
    if (asked.ids.empty())
      throw RequestError(400, "empty_prompt", "the prompt is empty: give at least one token");
    check_room(Session(service.model, service.session), asked.ids, asked.room);
    return [&service, asked = std::move(asked)](const Caller& c) {
      return prompt_fresh_ids(service, c, asked);
    };
  }
  const auto p = std::make_shared<PreparedPrompt>(resume(service, caller, node));
  use_model_settings(service, p->exchange.session());
  check_room(p->exchange.session(), asked.ids, asked.room);
  return [&service, p, asked = std::move(asked)](const Caller& c) {
    process_ids(service, c, *p, asked);
    return std::move(*p);
  };
}

// ---------------------------------------------------------------- processing

PreparedPrompt prompt_messages(Service& service, const Caller& caller,
                               std::vector<Message> messages, const ChatOptions& chat) {
  return check_messages(service, caller, nullptr, std::move(messages), chat)(caller);
}

PreparedPrompt prompt_ids(Service& service, const Caller& caller, const std::vector<int32_t>& ids) {
  return check_ids(service, caller, nullptr, {ids})(caller);
}

PreparedPrompt resume(Service& service, const Caller& caller, const NodePtr& node) {
  Usage usage;
  Parent parent = service.states.as_parent(node);
  Session session = service.open(caller, node, &usage);
  const bool chat = !session.chat().messages.empty() && service.tokenizer != nullptr;
  std::string known_text;
  if (node->operation.is_object() && node->operation.value("told", false))
    known_text = held_text(session.generation(), service.tokenizer.get());
  return {Exchange(std::move(session), service.tokenizer,
                   chat ? Exchange::Kind::conversation : Exchange::Kind::raw),
          usage,
          std::move(parent),
          {{"name", "continue"}},
          std::move(known_text)};
}

void process_plan(Service& service, const Caller& caller, PreparedPrompt& p,
                  const Conversation::Plan& plan) {
  run_plan(service, caller, p, plan);
  p.usage.reused = std::min(p.usage.reused, plan.report.kept);
  p.usage.recomputed += plan.report.recomputed;
  p.usage.fresh += plan.report.added;
}

void append_text(Service& service, const Caller& caller, PreparedPrompt& p,
                 std::span<const int32_t> ids) {
  check_room(p.exchange.session(), ids);
  process_ids(service, caller, p, {{ids.begin(), ids.end()}});
}

}  // namespace stet::serve
