#include "tools/serve/service.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <ctime>

#include "stet/base/error.hpp"

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

bool Service::is_name(const std::string& model_name) const {
  return model_name == name ||
         std::find(aliases.begin(), aliases.end(), model_name) != aliases.end();
}

size_t Service::longest_token() const {
  std::call_once(measured_, [this] {
    for (int32_t id = 0; tokenizer != nullptr && id < tokenizer->size(); ++id)
      longest_token_ = std::max(longest_token_, tokenizer->bytes(id).size());
  });
  return longest_token_;
}

Appender Service::appender(const Caller& caller) {
  return [this, gone = caller.gone](Session& s, std::span<const int32_t> ids) {
    engine.process(s, ids, gone);
  };
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
  if (const Json* stop = f.find("stop"); stop != nullptr && *stop != "")
    o.stop = f.texts("stop", 16);
  o.ignore_eos = f.boolean("ignore_eos").value_or(false);
  o.frequency_penalty = f.number("frequency_penalty", -2, 2);
  o.presence_penalty = f.number("presence_penalty", -2, 2);
  if (auto biases = f.object("logit_bias"))
    o.logit_bias = read_logit_bias(std::move(*biases), vocab_size);
  return o;
}

void DrawOptions::check(const Service& service, GenerationState state) const {
  apply(state, *service.model);
  if (!state.stop_strings.empty()) service.need_tokenizer();
}

void DrawOptions::settle(const Service& service) {
  GenerationState state = default_generation(*service.model);
  check(service, state);
  apply(state, *service.model);
  if (!seed && !state.sampling.greedy) seed = static_cast<int64_t>(tool::random_seed());
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

RequestError reported_error() {
  try {
    throw;
  } catch (const RequestError& e) {
    return e;
  } catch (const Error& e) {
    if (e.kind != ErrorKind::io) return current_error();
    tool::say("error: {}\n", printable(e.what(), 3000));
    return {500, "io", "the server could not use a file of its own; its log names the reason"};
  } catch (const std::exception& e) {
    tool::say("error: {}\n", printable(e.what(), 3000));
    return current_error();
  } catch (...) {
    return current_error();
  }
}

Response respond_at_once(Service& service, const Request& request,
                         const std::function<Response(const Caller&)>& body) {
  const Caller caller = service.caller(request);
  return in_time(caller, [&] {
    const Engine::Lease lease = service.engine.enter(caller.client, caller.gone);
    Response r = body(caller);
    service.request_seconds.add(tool::seconds() - caller.since);
    return r;
  });
}

Response answer_at_once(Service& service, const Request& request,
                        const std::function<Json(const Caller&)>& body) {
  return respond_at_once(service, request,
                         [&](const Caller& caller) { return json_response(body(caller)); });
}

Response stream_events(Service& service, const Request& request,
                       const std::function<StreamBody(const Caller&)>& prepare,
                       const TellError& tell) {
  constexpr double kKeepAlive = 5;
  const Caller caller = service.caller(request);
  return in_time(caller, [&] {
    const auto lease =
        std::make_shared<Engine::Lease>(service.engine.enter(caller.client, caller.gone));
    return event_stream([&service, caller, lease, tell, body = prepare(caller)](Writer& writer) {
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
        const RequestError error = reported_error();
        writer.event(tell ? tell(error) : error.json(), "error");
      }
    });
  });
}

}  // namespace stet::serve
