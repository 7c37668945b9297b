// C interface: sampling and generation.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "src/c/internal.hpp"
#include "stet/generate/draft_model.hpp"

struct stet_sampler {
  stet::Sampler sampler;
  int32_t vocab_size;
  std::vector<int32_t> drawn = {};
};

struct stet_speculator {
  stet::Speculator speculator;
  std::shared_ptr<const stet::Model> draft = nullptr;  // null: drafts come from earlier tokens
};

namespace stet::c {
namespace {

// A reply together with the memory that it points to.
struct OwnedReply : stet_reply {
  explicit OwnedReply(Reply r) : reply(std::move(r)) {}
  Reply reply;
};

int32_t stop_value(StopReason stop) {
  switch (stop) {
    case StopReason::eos:
      return STET_STOP_EOS;
    case StopReason::stop_string:
      return STET_STOP_STRING;
    case StopReason::length:
      return STET_STOP_LENGTH;
    case StopReason::interrupted:
      return STET_STOP_CALLBACK;
  }
  return -1;
}

stet_sampling sampling_value(const SamplingSettings& s) {
  stet_sampling value{};
  value.temperature = s.temperature;
  value.top_p = s.top_p;
  value.min_p = s.min_p;
  value.typical_p = s.typical_p;
  value.repetition_penalty = s.repetition_penalty;
  value.frequency_penalty = s.frequency_penalty;
  value.presence_penalty = s.presence_penalty;
  value.seed = s.seed;
  value.top_k = s.top_k;
  value.greedy = s.greedy ? 1 : 0;
  return value;
}

// Throws unless log_probability() can handle these arguments.
void check_logits(std::span<const float> logits, int32_t id) {
  if (id < 0 || static_cast<size_t>(id) >= logits.size())
    fail("id", "an id below " + std::to_string(logits.size()), std::to_string(id));
  bool finite = false;
  for (const float x : logits) {
    if (std::isnan(x) || x > std::numeric_limits<float>::max())
      fail("logits", "finite values or -inf", std::to_string(x));
    finite = finite || std::isfinite(x);
  }
  if (!finite) fail("logits", "at least one finite value", "-inf alone");
}

// Changes settings of a session. Throws and leaves them as they were if the new ones are invalid.
template <class Change>
void change_generation(Session& session, const char* call, Change&& change) {
  session.refuse_changes(call);
  GenerationState changed = session.generation();
  change(changed);
  check_generation(changed, session.model().config().vocab_size, session.size(), "");
  session.generation() = std::move(changed);
}

}  // namespace

Generation::Generation(const stet_generate_options* options, const Session& session)
    : given_(input(options, "options")) {
  check_flags(given_.flags, STET_GENERATE_IGNORE_EOS, "options");
  if (given_.max_tokens < 0) fail("max_tokens", "0 or more", std::to_string(given_.max_tokens));
  if (given_.max_tokens > 0) options_.max_tokens = given_.max_tokens;
  options_.ignore_eos = (given_.flags & STET_GENERATE_IGNORE_EOS) != 0;
  if (given_.speculator != nullptr) {
    if (given_.speculator->draft != nullptr)
      ModelDrafter::check(*given_.speculator->draft, session.model());
    options_.speculator = &given_.speculator->speculator;
  }
  if (given_.on_token != nullptr) {
    options_.observe = [this, &session](int32_t id, std::span<const float> logits) {
      const Session::ReadOnly lent(session);
      if (given_.on_token(given_.context, id, logits.data(), logits.size()) != 0) stopped_ = true;
    };
  }
  sink_ = [this, &session](std::string_view text) {
    const stet_text t = view(text);
    const Session::ReadOnly lent(session);
    if (given_.on_text != nullptr && given_.on_text(given_.context, t.data, t.size) != 0)
      stopped_ = true;
    return !stopped_;
  };
}

stet_reply* new_reply(Reply reply) {
  auto owned = std::make_unique<OwnedReply>(std::move(reply));
  const Reply& r = owned->reply;
  owned->ids = r.ids.empty() ? nullptr : r.ids.data();
  owned->id_count = r.ids.size();
  owned->text = view(r.text);
  owned->stop = stop_value(r.stop);
  owned->drafted = r.drafted;
  owned->accepted = r.accepted;
  return owned.release();
}

}  // namespace stet::c

using namespace stet::c;

// ---------------------------------------------------------------- settings of a session

stet_status stet_sampling_init(stet_sampling* sampling, stet_error** error) {
  return guarded(error, [&] {
    stet_sampling& to = checked(sampling, "sampling");
    give(sampling_value(stet::SamplingSettings()), to);
  });
}

stet_status stet_session_get_sampling(const stet_session* session, stet_sampling* sampling,
                                      stet_error** error) {
  return guarded(error, [&] {
    stet_sampling& to = checked(sampling, "sampling");
    const stet_session& from = at(session, "session");
    const stet::SamplingSettings& s = from.at->generation().sampling;
    stet_sampling value = sampling_value(s);
    // An array that an earlier call returned stays valid until the biases change.
    const auto same = [](const stet_token_bias& a, const stet::TokenBias& b) {
      return a.id == b.id && a.bias == b.bias;
    };
    if (!std::ranges::equal(from.logit_bias, s.logit_bias, same)) {
      from.logit_bias.clear();
      for (const auto& [id, bias] : s.logit_bias) from.logit_bias.push_back({id, bias});
    }
    value.logit_bias_count = s.logit_bias.size();
    if (value.logit_bias_count > 0) value.logit_bias = from.logit_bias.data();
    give(value, to);
  });
}

stet_status stet_session_set_sampling(stet_session* session, const stet_sampling* sampling,
                                      stet_error** error) {
  return guarded(error, [&] {
    stet::Session& s = *at(session, "session").at;
    change_generation(s, "set_sampling", [&](stet::GenerationState& state) {
      stet::SamplingSettings changed = sampling_of(sampling), &before = state.sampling;
      if (sampling->struct_size <= offsetof(stet_sampling, frequency_penalty)) {
        changed.frequency_penalty = before.frequency_penalty;
        changed.presence_penalty = before.presence_penalty;
        changed.logit_bias = std::move(before.logit_bias);
      }
      before = std::move(changed);
    });
  });
}

stet_status stet_session_use_recommended(stet_session* session, stet_error** error) {
  return guarded(error, [&] {
    stet::Session& s = *at(session, "session").at;
    s.refuse_changes("use_recommended");
    stet::GenerationState recommended = stet::default_generation(s.model());
    stet::GenerationState& state = s.generation();
    recommended.sampling.seed = state.sampling.seed;
    state.sampling = recommended.sampling;
    state.stop_ids = std::move(recommended.stop_ids);
  });
}

stet_status stet_session_stop_ids(const stet_session* session, const int32_t** ids, size_t* count,
                                  stet_error** error) {
  return guarded(error, [&] {
    const auto to = outputs(ids, "ids", count, "count");
    const stet::Session& s = *at(session, "session").at;
    const std::vector<int32_t>& stops = s.generation().stop_ids;
    if (stops.empty()) return;
    to.first = stops.data();
    to.second = stops.size();
  });
}

stet_status stet_session_set_stop_ids(stet_session* session, const int32_t* ids, size_t count,
                                      stet_error** error) {
  return guarded(error, [&] {
    const std::span<const int32_t> stops = items(ids, count, "ids");
    stet::Session& s = *at(session, "session").at;
    change_generation(s, "set_stop_ids", [&](stet::GenerationState& state) {
      state.stop_ids.assign(stops.begin(), stops.end());
    });
  });
}

stet_status stet_session_stop_string(const stet_session* session, size_t index, stet_text* text,
                                     stet_error** error) {
  return guarded(error, [&] {
    stet_text& to = output(text, "text");
    const stet::Session& s = *at(session, "session").at;
    to = view(element(s.generation().stop_strings, index, "index"));
  });
}

stet_status stet_session_set_stop_strings(stet_session* session, const stet_text* strings,
                                          size_t count, stet_error** error) {
  return guarded(error, [&] {
    std::vector<std::string> stops;
    for (const stet_text& text : items(strings, count, "strings")) {
      // not copied before its size is known to be one that a stop string can have
      if (text.size > stet::detail::kLongest)
        fail("stop[" + std::to_string(stops.size()) + "]", "1 to 65536 bytes",
             std::to_string(text.size));
      stops.push_back(string_of(text, "strings"));
    }
    stet::Session& s = *at(session, "session").at;
    change_generation(s, "set_stop_strings",
                      [&](stet::GenerationState& state) { state.stop_strings = std::move(stops); });
  });
}

stet_status stet_session_turn(const stet_session* session, size_t index, stet_turn* turn,
                              stet_error** error) {
  return guarded(error, [&] {
    stet_turn& to = output(turn, "turn");
    const stet::Session& s = *at(session, "session").at;
    const stet::Turn& t = element(s.generation().turns, index, "index");
    to = {t.prompt, t.reply, t.end, t.open ? 1 : 0};
  });
}

// ---------------------------------------------------------------- replies

void stet_reply_free(stet_reply* reply) { delete static_cast<OwnedReply*>(reply); }

stet_status stet_session_append_prompt(stet_session* session, const int32_t* ids, size_t count,
                                       stet_error** error) {
  return guarded(
      error, [&] { stet::append_prompt(*at(session, "session").at, items(ids, count, "ids")); });
}

stet_status stet_session_append_prompt_watched(stet_session* session, const int32_t* ids,
                                               size_t count, stet_progress_callback on_progress,
                                               void* context, stet_error** error) {
  return guarded(error, [&] {
    stet::append_prompt(*at(session, "session").at, items(ids, count, "ids"),
                        progress_of(on_progress, context));
  });
}

stet_status stet_session_generate(stet_session* session, const stet_tokenizer* tokenizer,
                                  const stet_generate_options* options, stet_reply** reply,
                                  stet_error** error) {
  return guarded(error, [&] {
    stet_reply*& to = output(reply, "reply");
    stet::Session& s = *at(session, "session").at;
    Generation generation(options, s);
    to = new_reply(stet::generate(s, optional_tokenizer(tokenizer, s), generation.options(),
                                  generation.sink()));
  });
}

stet_status stet_session_end_reply(stet_session* session, const stet_tokenizer* tokenizer,
                                   char** text, size_t* size, stet_error** error) {
  return guarded(error, [&] {
    const auto to = outputs(text, "text", size, "size");
    stet::Session& s = *at(session, "session").at;
    give_text(stet::end_reply(s, optional_tokenizer(tokenizer, s)), to);
  });
}

// ---------------------------------------------------------------- speculation

stet_status stet_speculator_new(const stet_model* draft, const stet_session_options* options,
                                stet_speculator** speculator, stet_error** error) {
  return guarded(error, [&] {
    stet_speculator*& to = output(speculator, "speculator");
    std::shared_ptr<stet::Drafter> drafter = std::make_shared<stet::SuffixDrafter>();
    if (draft != nullptr) {
      drafter = std::make_shared<stet::ModelDrafter>(
          draft->model, session_options(options, draft->model->contract()));
    }
    to = new stet_speculator{stet::Speculator(std::move(drafter)),
                             draft == nullptr ? nullptr : draft->model};
  });
}

void stet_speculator_free(stet_speculator* speculator) { delete speculator; }

// ---------------------------------------------------------------- sampling without a session

stet_status stet_sampler_new(int32_t vocab_size, stet_sampler** sampler, stet_error** error) {
  return guarded(error, [&] {
    stet_sampler*& to = output(sampler, "sampler");
    to = new stet_sampler{stet::Sampler(vocab_size), vocab_size};
  });
}

void stet_sampler_free(stet_sampler* sampler) { delete sampler; }

stet_status stet_sampler_set_drawn(stet_sampler* sampler, const int32_t* ids, size_t count,
                                   stet_error** error) {
  return guarded(error, [&] {
    const std::span<const int32_t> drawn = items(ids, count, "ids");
    stet_sampler& s = at(sampler, "sampler");
    stet::detail::check_ids(drawn, s.vocab_size);
    s.drawn.assign(drawn.begin(), drawn.end());
  });
}

stet_status stet_sampler_sample(stet_sampler* sampler, const stet_sampling* sampling,
                                const float* logits, size_t count, const int32_t* previous,
                                size_t previous_count, uint64_t position, int32_t* id,
                                stet_error** error) {
  return guarded(error, [&] {
    int32_t& to = output(id, "id");
    stet_sampler& s = at(sampler, "sampler");
    to = s.sampler.sample(sampling_of(sampling), items(logits, count, "logits"),
                          items(previous, previous_count, "previous"), position, s.drawn);
  });
}

stet_status stet_sampler_probabilities(stet_sampler* sampler, const stet_sampling* sampling,
                                       const float* logits, size_t count, const int32_t* previous,
                                       size_t previous_count, float* out, stet_error** error) {
  return guarded(error, [&] {
    stet_sampler& s = at(sampler, "sampler");
    s.sampler.probabilities(sampling_of(sampling), items(logits, count, "logits"),
                            items(previous, previous_count, "previous"), items(out, count, "out"),
                            s.drawn);
  });
}

stet_status stet_log_probability(const float* logits, size_t count, int32_t id, double* result,
                                 stet_error** error) {
  return guarded(error, [&] {
    double& to = output(result, "result");
    const std::span<const float> all = items(logits, count, "logits");
    check_logits(all, id);
    to = stet::log_probability(all, id);
  });
}
