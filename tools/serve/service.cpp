#include "tools/serve/service.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <numeric>

#include "stet/base/error.hpp"
#include "stet/text/utf8.hpp"

namespace stet::serve {

Service::Service(std::shared_ptr<const Model> model_, std::shared_ptr<const Tokenizer> tokenizer_,
                 const SessionOptions& session_, const StatesOptions& states_,
                 const EngineOptions& engine_, double deadline_)
    : model(std::move(model_)),
      tokenizer(std::move(tokenizer_)),
      session(session_),
      states(model, tokenizer, session, states_),
      engine(engine_),
      name(tool::checkpoint_name(model->directory())),
      fingerprint(fmt::format("{}-{}{}", model->fingerprint(),
                              contract_name(*model, session.compute.contract), kContractVersion)),
      deadline(deadline_),
      started(static_cast<int64_t>(std::time(nullptr))) {}

Caller Service::caller(const Request& request) const {
  const double now = tool::seconds(), end = deadline > 0 ? now + deadline : 0;
  return {request.client,
          [connection = request.connection, end] {
            return connection.gone() || (end > 0 && tool::seconds() > end);
          },
          now, end};
}

const Tokenizer& Service::need_tokenizer() const {
  if (tokenizer == nullptr)
    throw RequestError(400, "no_tokenizer", "expected token ids: this model has no tokenizer");
  return *tokenizer;
}

Appender Service::appender(const Caller& caller) {
  return [this, gone = caller.gone](Session& s, std::span<const int32_t> ids) {
    engine.process(s, ids, gone);
  };
}

Talk::Talk(Session session, std::shared_ptr<const Tokenizer> tokenizer, bool chat) {
  if (chat)
    chat_.emplace(std::move(session), std::move(tokenizer));
  else
    raw_.emplace(std::move(session));
}

Talk Talk::fork() const {
  Talk copy;
  if (chat_)
    copy.chat_.emplace(chat_->fork());
  else
    copy.raw_.emplace(raw_->fork());
  return copy;
}

// ---------------------------------------------------------------- how to draw

namespace {

std::vector<TokenBias> read_logit_bias(Fields f, int64_t vocab_size) {
  std::vector<TokenBias> biases;
  for (const std::string& name : f.names()) {
    int32_t id = -1;
    std::from_chars(name.data(), name.data() + name.size(), id);
    if (id < 0 || id >= vocab_size || std::to_string(id) != name)
      refuse(f.at(name), fmt::format("a token id in 0..{} as name", vocab_size - 1),
             printable(name, 60));
    if (const auto bias = f.number(name, -100, 100)) biases.push_back({id, *bias});
  }
  biases = logit_bias_of(std::move(biases));
  if (biases.size() > kMaxLogitBias)
    refuse(f.pointer(), fmt::format("at most {} tokens", kMaxLogitBias),
           std::to_string(biases.size()));
  return biases;
}

}  // namespace

DrawOptions read_draw(Fields& f, int64_t vocab_size) {
  DrawOptions o;
  o.temperature = f.number("temperature", 0, 1e30);
  o.top_p = f.number("top_p", 0, 1);
  o.top_k = f.integer("top_k", 0, INT32_MAX);
  o.min_p = f.number("min_p", 0, 1);
  o.typical_p = f.number("typical_p", 1e-9, 1);
  o.repetition_penalty = f.number("repetition_penalty", 1e-30, 1e30);
  o.seed = f.integer("seed", 0, INT64_MAX);
  if (f.find("stop") != nullptr) o.stop = f.texts("stop", 16);
  o.ignore_eos = f.boolean("ignore_eos").value_or(false);
  o.frequency_penalty = f.number("frequency_penalty", -2, 2);
  o.presence_penalty = f.number("presence_penalty", -2, 2);
  if (auto biases = f.object("logit_bias"))
    o.logit_bias = read_logit_bias(std::move(*biases), vocab_size);
  return o;
}

void DrawOptions::apply(GenerationState& state, const Model& model) const {
  SamplingSettings& s = state.sampling;
  if (temperature) s.greedy = *temperature == 0;
  if (temperature && *temperature > 0) s.temperature = *temperature;
  if (top_p) s.top_p = *top_p;
  if (top_k) s.top_k = static_cast<int>(*top_k);
  if (min_p) s.min_p = *min_p;
  if (typical_p) s.typical_p = *typical_p;
  if (repetition_penalty) s.repetition_penalty = *repetition_penalty;
  if (frequency_penalty) s.frequency_penalty = *frequency_penalty;
  if (presence_penalty) s.presence_penalty = *presence_penalty;
  if (logit_bias) s.logit_bias = *logit_bias;
  if (seed) s.seed = static_cast<uint64_t>(*seed);
  if (stop) state.stop_strings = *stop;
  check_generation(state, model.config().vocab_size, kMaxPositions, "");
}

// ---------------------------------------------------------------- prompts

namespace {

// A prompt that leaves no room for a token of the reply is refused, and never cut.
void check_room(const Session& session, size_t tokens) {
  if (static_cast<int64_t>(tokens) < session.capacity()) return;
  throw RequestError(400, "context_length_exceeded",
                     fmt::format("expected a prompt of fewer than {} tokens, found {}",
                                 session.capacity(), tokens));
}

void prompt_conversation(Service& service, const Caller& caller, Conversation& conversation,
                         const Conversation::Plan& plan) {
  conversation.begin(plan);
  service.engine.process(conversation.session(), Conversation::to_process(plan), caller.gone);
  conversation.prompted(plan);
}

}  // namespace

void check_messages(const Service& service, const std::vector<Message>& messages,
                    const ChatState& chat) {
  service.need_tokenizer();
  Session empty(service.model, service.session);
  empty.chat() = chat;
  const Conversation fresh(std::move(empty), service.tokenizer);
  check_room(fresh.session(), fresh.prepare(messages).ids.size());
}

Prompted prompt_messages(Service& service, const Caller& caller, std::vector<Message> messages,
                         ChatState chat) {
  service.need_tokenizer();
  Session empty(service.model, service.session);
  empty.chat() = chat;
  const Conversation fresh(std::move(empty), service.tokenizer);
  const Conversation::Plan rendering = fresh.prepare(messages);
  check_room(fresh.session(), rendering.ids.size());
  Usage usage;
  Session session =
      service.states.longest_prefix(caller.client, rendering.ids, service.appender(caller), usage);
  session.generation() = default_generation(*service.model);
  session.chat() = fresh.session().chat();
  Prompted p{Talk(std::move(session), service.tokenizer, true),
             usage,
             "",
             {{"name", "messages"}, {"count", messages.size()}}};
  Conversation& conversation = *p.talk.conversation();
  prompt_conversation(service, caller, conversation, conversation.prepare(std::move(messages)));
  const int64_t size = conversation.session().size();
  // As if all had been processed now: a state does not tell what was known before.
  conversation.session().generation().turns = {{0, size, size, true}};
  p.usage.fresh = static_cast<int64_t>(rendering.ids.size()) - p.usage.reused;
  return p;
}

Prompted prompt_ids(Service& service, const Caller& caller, const std::vector<int32_t>& ids) {
  detail::check_ids(ids, service.model->config().vocab_size);
  Usage usage;
  Session empty(service.model, service.session);
  if (ids.empty())
    throw RequestError(400, "empty_prompt", "expected a prompt of at least one token, found none");
  check_room(empty, ids.size());
  Session session =
      service.states.longest_prefix(caller.client, ids, service.appender(caller), usage);
  session.generation() = default_generation(*service.model);
  const std::span<const int32_t> rest = std::span(ids).subspan(static_cast<size_t>(session.size()));
  service.engine.process(session, rest, caller.gone);
  session.generation().turns.clear();
  open_prompt_turn(session, 0);
  usage.fresh = static_cast<int64_t>(ids.size()) - usage.reused;
  return {Talk(std::move(session), service.tokenizer, false),
          usage,
          "",
          {{"name", "create"}, {"tokens", ids.size()}}};
}

Prompted resume(Service& service, const Caller& caller, const NodePtr& node) {
  Usage usage;
  Session session = service.open(caller, node, &usage);
  const bool chat = !session.chat().messages.empty() && service.tokenizer != nullptr;
  return {
      Talk(std::move(session), service.tokenizer, chat), usage, node->id, {{"name", "continue"}}};
}

void say(Service& service, const Caller& caller, Prompted& p, std::vector<Message> more) {
  Conversation* conversation = p.talk.conversation();
  if (conversation == nullptr)
    throw RequestError(400, "not_a_conversation",
                       "expected a state of a conversation, found one of raw text");
  std::vector<Message> messages = conversation->messages();
  messages.insert(messages.end(), more.begin(), more.end());
  const Conversation::Plan plan = conversation->prepare(std::move(messages));
  check_room(conversation->session(), plan.ids.size());
  prompt_conversation(service, caller, *conversation, plan);
  p.usage.reused = std::min(p.usage.reused, plan.report.kept);
  p.usage.recomputed += plan.report.recomputed;
  p.usage.fresh += plan.report.added;
}

void append_text(Service& service, const Caller& caller, Prompted& p,
                 std::span<const int32_t> ids) {
  Session& session = p.talk.session();
  detail::check_ids(ids, service.model->config().vocab_size);
  check_room(session, static_cast<size_t>(session.size()) + ids.size());
  const int64_t at = session.size();
  service.engine.process(session, ids, caller.gone);
  open_prompt_turn(session, at);
  p.usage.fresh += static_cast<int64_t>(ids.size());
}

// ---------------------------------------------------------------- replies

namespace {

// One reply on its way.
struct Choice {
  Choice(Service& service, Talk talk_, const DrawOptions& options, size_t index)
      : talk(std::move(talk_)) {
    GenerationState& g = talk.session().generation();
    options.apply(g, *service.model);
    g.sampling.seed += index;
    if (talk.conversation() != nullptr) talk.conversation()->begin_reply();
    GenerateOptions o;
    o.max_tokens = options.max_tokens.value_or(INT64_MAX);
    o.ignore_eos = options.ignore_eos;
    if (options.top_logprobs >= 0) {
      o.observe = [this, n = static_cast<size_t>(options.top_logprobs)](
                      int32_t id, std::span<const float> logits) {
        const std::lock_guard lock(mutex);
        seen.push_back({id, log_probability(logits, id), top_candidates(logits, n)});
      };
    }
    generator.emplace(talk.session(), service.tokenizer.get(), o);
    job.emplace(talk.session(), *generator, options.choose);
  }

  Reply finish() {
    Reply reply = generator->finish();
    if (talk.conversation() != nullptr) talk.conversation()->end_reply(reply);
    return reply;
  }

  Talk talk;
  std::optional<Generator> generator;
  std::optional<Job> job;
  std::mutex mutex;  // the engine's thread writes what it sees
  std::vector<TokenLogprob> seen;
  std::vector<TokenLogprob> told;
  bool over = false;
};

// What has come of one choice since the last look. False when it is over.
bool take_pieces(Choice& choice, size_t index, const Gone& gone,
                 const std::function<bool(const ReplyPiece&)>& sink, bool& wanted) {
  std::vector<Job::Piece> pieces;
  if (!choice.job->wait(pieces, [&] { return !wanted || gone(); })) return false;
  ReplyPiece piece{index, "", {}, {}};
  for (const Job::Piece& p : pieces) {
    piece.text += p.text;
    piece.ids.push_back(p.id);
    const std::lock_guard lock(choice.mutex);
    if (choice.told.size() < choice.seen.size()) {
      choice.told.push_back(choice.seen[choice.told.size()]);
      piece.logprobs.push_back(choice.told.back());
    }
  }
  if (!pieces.empty() && wanted && !sink(piece)) wanted = false;
  return true;
}

}  // namespace

std::vector<ReplyResult> draw_replies(Service& service, const Caller& caller, Prompted& prompted,
                                      const DrawOptions& options,
                                      const std::function<bool(const ReplyPiece&)>& sink) {
  const Gone& gone = caller.gone;
  std::vector<std::unique_ptr<Choice>> choices;
  for (int64_t i = 0; i < options.n; ++i) {
    choices.push_back(
        std::make_unique<Choice>(service, prompted.talk.fork(), options, static_cast<size_t>(i)));
  }
  const auto known = service.states.running(caller.client, prompted.talk.session());
  for (const auto& choice : choices) service.engine.start(*choice->job);
  bool wanted = true, cancelled = false, first = true;
  std::exception_ptr error;
  const auto told = [&](const ReplyPiece& piece) {
    if (std::exchange(first, false))
      service.first_token_seconds.add(tool::seconds() - caller.since);
    return !sink || sink(piece);
  };
  // Every job is waited for, whatever happens: it has its session until it is over.
  for (size_t left = choices.size(); left > 0;) {
    for (size_t i = 0; i < choices.size(); ++i) {
      Choice& choice = *choices[i];
      if (choice.over) continue;
      try {
        if (take_pieces(choice, i, gone, told, wanted)) continue;
      } catch (const Cancelled&) {
        cancelled = true;
      } catch (...) {
        error = std::current_exception();
        wanted = false;
      }
      choice.over = true;
      --left;
    }
  }
  if (error != nullptr) std::rethrow_exception(error);
  std::vector<ReplyResult> results;
  service.states.count(prompted.usage);
  for (const auto& choice : choices) {
    ReplyResult r;
    r.reply = choice->finish();
    r.logprobs = choice->seen;
    r.cancelled = cancelled;
    Json operation = prompted.operation;
    operation["drawn"] = r.reply.ids.size();
    r.node = service.states.add(caller.client, prompted.parent, std::move(operation),
                                std::move(choice->talk.session()));
    results.push_back(std::move(r));
  }
  if (cancelled) throw Cancelled();
  return results;
}

// ---------------------------------------------------------------- answers

namespace {

// Whoever reads an answer has not gone.
template <class Work>
auto in_time(const Caller& caller, Work&& work) {
  try {
    return work();
  } catch (const Cancelled&) {
    if (caller.until == 0 || tool::seconds() <= caller.until) throw;
    throw RequestError(504, "deadline_exceeded",
                       fmt::format("expected an end within {:g} s (--deadline), found none",
                                   caller.until - caller.since));
  }
}

}  // namespace

Response answer_at_once(Service& service, const Request& request,
                        const std::function<Json(const Caller&)>& body) {
  const Caller caller = service.caller(request);
  return in_time(caller, [&] {
    const Engine::Lease lease = service.engine.enter(caller.client, caller.gone);
    Response r = json_response(body(caller));
    service.request_seconds.add(tool::seconds() - caller.since);
    return r;
  });
}

Response stream_events(Service& service, const Request& request,
                       std::function<void(const Caller&, Writer&)> body) {
  constexpr double kKeepAlive = 5;
  const Caller caller = service.caller(request);
  const auto lease = in_time(caller, [&] {
    return std::make_shared<Engine::Lease>(service.engine.enter(caller.client, caller.gone));
  });
  return event_stream([&service, caller, lease, body = std::move(body)](Writer& writer) {
    Caller talking = caller;
    talking.gone = [&writer, &caller, next = tool::seconds() + kKeepAlive]() mutable {
      if (tool::seconds() > next) {
        writer.write(": still here\n\n");
        next = tool::seconds() + kKeepAlive;
      }
      return !writer.good() || caller.gone();
    };
    try {
      in_time(caller, [&] { body(talking, writer); });
      service.request_seconds.add(tool::seconds() - caller.since);
    } catch (...) {
      writer.event(current_error().json());
    }
  });
}

// ---------------------------------------------------------------- messages and tokens

std::string read_content(const Json& content, const std::string& pointer) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array())
    refuse(pointer, "a string, or a list of text parts", printable(tool::dump(content), 60));
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    Fields part(content[i], fmt::format("{}/{}", pointer, i));
    const std::string type = part.required_text("type");
    if (type != "text" && type != "input_text" && type != "output_text")
      refuse(part.at("type"), "text", printable(type, 60), "unsupported_content");
    text += part.required_text("text");
    part.unused({"annotations", "logprobs", "cache_control"});
    part.finish();
  }
  return text;
}

std::vector<Message> read_messages(Fields& fields, const std::string& name) {
  const Json* list = fields.find(name);
  const std::string pointer = fields.at(name);
  if (list == nullptr || !list->is_array() || list->empty())
    refuse(pointer, "a list of at least one message",
           list == nullptr ? "nothing" : printable(tool::dump(*list), 60));
  if (list->size() > 4096) refuse(pointer, "at most 4096 messages", std::to_string(list->size()));
  std::vector<Message> messages;
  for (size_t i = 0; i < list->size(); ++i) {
    Fields f((*list)[i], fmt::format("{}/{}", pointer, i));
    Message m;
    m.role = f.required_text("role");
    if (m.role == "developer") m.role = "system";
    if (m.role != "system" && m.role != "user" && m.role != "assistant")
      refuse(f.at("role"), "system, developer, user or assistant", printable(m.role, 60),
             "unsupported_role");
    const Json* content = f.find("content");
    if (content == nullptr)
      refuse(f.at("content"), "a string, or a list of text parts", "nothing", "missing_field");
    m.content = read_content(*content, f.at("content"));
    if (const auto type = f.text("type"); type && *type != "message")
      refuse(f.at("type"), "message", printable(*type, 60), "unsupported_content");
    f.neutral("name", {});
    f.neutral("tool_calls", {Json::array()});
    f.neutral("function_call", {});
    f.neutral("refusal", {""});
    f.neutral("audio", {});
    f.unused({"id", "status", "annotations"});
    f.finish();
    messages.push_back(std::move(m));
  }
  return messages;
}

std::string token_bytes(const Tokenizer* tokenizer, int32_t id) {
  // A model may have more rows, or no tokenizer at all.
  return tokenizer != nullptr && id < tokenizer->size() ? tokenizer->bytes(id) : "";
}

Json bytes_json(const std::string& bytes) {
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return list;
}

std::vector<std::pair<int32_t, double>> top_candidates(std::span<const float> logits, size_t n) {
  if (n == 0) return {};
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  n = std::min(n, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n), ids.end(),
                    [&](int32_t a, int32_t b) {
                      const float x = logits[static_cast<size_t>(a)],
                                  y = logits[static_cast<size_t>(b)];
                      return x > y || (x == y && a < b);
                    });
  std::vector<std::pair<int32_t, double>> top;
  for (size_t i = 0; i < n; ++i) top.emplace_back(ids[i], log_probability(logits, ids[i]));
  return top;
}

Json logprob_json(const Tokenizer* tokenizer, const TokenLogprob& token) {
  const auto entry = [&](int32_t id, double logprob) {
    const std::string bytes = token_bytes(tokenizer, id);
    return Json{{"token", utf8_lossy(bytes)}, {"logprob", logprob}, {"bytes", bytes_json(bytes)}};
  };
  Json j = entry(token.id, token.logprob);
  j["top_logprobs"] = Json::array();
  for (const auto& [id, logprob] : token.top) j["top_logprobs"].push_back(entry(id, logprob));
  return j;
}

}  // namespace stet::serve
