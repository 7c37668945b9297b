// The server's parts, and the sampling settings of one request.
#include "tools/serve/service.hpp"

#include <fmt/format.h>

#include <algorithm>
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
          [this, connection = request.connection, end] {
            return connection.closed() || stopping || (end > 0 && tool::seconds() > end);
          },
          now, end};
}

const Tokenizer& Service::need_tokenizer() const {
  if (tokenizer == nullptr)
    throw RequestError(400, "no_tokenizer", "this model has no tokenizer; send token ids");
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
  return [this, cancelled = caller.cancelled](Session& s, std::span<const int32_t> ids) {
    engine.process(s, ids, cancelled);
  };
}

// ---------------------------------------------------------------- sampling settings

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

}  // namespace stet::serve
