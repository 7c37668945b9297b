// Implements generate.hpp.
#pragma once

namespace stet {

namespace detail {

// Returns the turn of a token drawn at this position. Opens one without a prompt if needed, which a
// rewind to this position removes.
STET_INL Turn& open_turn(Session& session, int64_t at) {
  std::vector<Turn>& turns = session.generation().turns;
  if (turns.empty() || !turns.back().open) turns.push_back({at, at, at, true});
  return turns.back();
}

STET_INL void close_turn(Session& session) {
  GenerationState& state = session.generation();
  if (!state.turns.empty()) state.turns.back().open = false;
  state.stream.clear();
  state.held.clear();
}

}  // namespace detail

STET_INL const char* stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::eos:
      return "eos";
    case StopReason::stop_string:
      return "stop";
    case StopReason::length:
      return "length";
    case StopReason::interrupted:
      return "interrupt";
  }
  return "";
}

STET_INL GenerationState default_generation(const Model& model) {
  const GenerationConfig& g = model.generation();
  GenerationState state;
  state.stop_ids = g.eos_ids;
  state.sampling.greedy = !g.sample;
  state.sampling.temperature = g.temperature;
  state.sampling.top_k = static_cast<int>(g.top_k);
  state.sampling.top_p = g.top_p;
  state.sampling.min_p = g.min_p;
  state.sampling.typical_p = g.typical_p;
  state.sampling.repetition_penalty = g.repetition_penalty;
  return state;
}

STET_INL void check_generation(const GenerationState& state, int64_t vocab_size, int64_t positions,
                               const std::string& source) {
  const auto fail = [&](const std::string& field, size_t i, const std::string& expected,
                        const std::string& found) {
    throw Error(ErrorKind::argument, source, field + "[" + std::to_string(i) + "]", expected,
                found);
  };
  state.sampling.validate(source);
  const std::string id_range = "a token id in 0.." + std::to_string(vocab_size - 1);
  if (const auto& biases = state.sampling.logit_bias;  // in ascending order
      !biases.empty() && biases.back().id >= vocab_size)
    throw Error(ErrorKind::argument, source, "logit_bias", id_range,
                std::to_string(biases.back().id));
  for (size_t i = 0; i < state.stop_ids.size(); ++i) {
    const int32_t id = state.stop_ids[i];
    if (id < 0 || id >= vocab_size) {
      fail("stop_ids", i, id_range, std::to_string(id));
    }
  }
  const StopMatcher lengths_are_right(state.stop_strings);
  for (size_t i = 0; i < state.stop_strings.size(); ++i) {
    if (!utf8_valid(state.stop_strings[i])) fail("stop", i, "UTF-8", state.stop_strings[i]);
  }
  int64_t at = 0;
  for (size_t i = 0; i < state.turns.size(); ++i) {
    const Turn& t = state.turns[i];
    if (t.prompt < at || t.reply < t.prompt || t.end < t.reply || t.end > positions) {
      fail(
          "turns", i, "positions in order, up to " + std::to_string(positions),
          std::to_string(t.prompt) + ", " + std::to_string(t.reply) + ", " + std::to_string(t.end));
    }
    at = t.end;
  }
}

STET_INL void check_tokenizer(const Model& model, const Tokenizer& tokenizer) {
  const auto vocab = static_cast<int32_t>(model.config().vocab_size);
  for (int32_t id = vocab; id < tokenizer.size(); ++id) {
    if (tokenizer.is_special(id) || tokenizer.piece(id).empty()) continue;
    throw Error(ErrorKind::mismatch, "", "tokenizer",
                "that of the model, whose ids are below " + std::to_string(vocab),
                "one with ids up to " + std::to_string(tokenizer.size() - 1));
  }
}

STET_INL void append_prompt(Session& session, std::span<const int32_t> ids,
                            const Progress& progress) {
  const int64_t at = session.size();
  session.append(ids, nullptr, nullptr, progress);
  open_prompt_turn(session, at);
}

STET_INL Generator::Generator(Session& session, const Tokenizer* tokenizer,
                              const GenerateOptions& options)
    : session_(checked(session, tokenizer)),
      options_(options),
      sampler_(static_cast<int>(session.model().config().vocab_size)),
      text_(tokenizer, session.generation().stop_strings) {
  if (text_.restore(session_.generation(), &certain_)) reply_stop_ = StopReason::stop_string;
  if (certain_.empty()) return;
  text_.save(&session_.generation());
  reply_.text += certain_;
}

STET_INL Session& Generator::checked(Session& session, const Tokenizer* tokenizer) {
  const GenerationState& state = session.generation();
  check_generation(state, session.model().config().vocab_size, session.size(), "");
  if (session.size() == 0)
    throw Error(ErrorKind::argument, "", "prompt", "at least one token", "none");
  if (tokenizer == nullptr && !state.stop_strings.empty()) {
    throw Error(ErrorKind::argument, "", "stop strings", "a tokenizer to match them in text",
                "none");
  }
  return session;
}

STET_INL std::optional<int32_t> Generator::draw() {
  if (!reply_stop_ && (static_cast<int64_t>(reply_.ids.size()) >= options_.max_tokens ||
                       session_.size() == session_.capacity())) {
    reply_stop_ = StopReason::length;
  }
  if (reply_stop_) return std::nullopt;
  const GenerationState& state = session_.generation();
  const std::span<const int32_t> tokens = session_.tokens();
  const int32_t id =
      sampler_.sample(state.sampling, session_.logits(), tokens,
                      static_cast<uint64_t>(session_.transcript_size()), state.reply_of(tokens));
  if (options_.observe) options_.observe(id, session_.logits());
  if (options_.speculator != nullptr) options_.speculator->drawn(id);
  return id;
}

STET_INL bool Generator::accept(int32_t id) {
  if (!session_.accepts(id)) return false;
  session_.append({&id, 1});
  ++reply_.accepted;
  return true;
}

STET_INL DraftChoice Generator::consider(int32_t id) {
  const int64_t left = options_.max_tokens - static_cast<int64_t>(reply_.ids.size()) - 1;
  const bool ends = !options_.ignore_eos && detail::is_stop_token(session_.generation(), id);
  if (options_.speculator == nullptr || left <= 0 || ends) return {};
  const size_t most = std::min(static_cast<size_t>(left), session_.most_drafted());
  if (most == 0) return {};
  DraftChoice choice = options_.speculator->consider(session_, id, most);
  choice.left = std::min(left, session_.capacity() - session_.size() - 1);
  return choice;
}

// A draft ends with the first stop token, which would end the reply.
STET_INL std::span<const int32_t> Generator::draft(int32_t id, const DraftChoice& choice) {
  if (choice.catching_up > 0) options_.speculator->catch_up(session_, id, choice.catching_up);
  if (choice.chosen == 0) return {};
  std::span<const int32_t> all = options_.speculator->take(session_, id, choice.chosen);
  const GenerationState& state = session_.generation();
  const auto stop = std::ranges::find_if(all, [&](int32_t drafted) {
    return !options_.ignore_eos && detail::is_stop_token(state, drafted);
  });
  all = all.first(std::min(all.size(), static_cast<size_t>(stop - all.begin()) + 1));
  reply_.drafted += all.size();
  return all;
}

STET_INL void Generator::append(int32_t id) {
  if (accept(id)) return;
  BatchEntry entry{&session_, {&id, 1}};
  DraftChoice choice = consider(id);
  if (options_.speculator != nullptr) {
    choose_drafts({&choice, 1}, 1, *costs());
    entry.draft = draft(id, choice);
  }
  const auto start = std::chrono::steady_clock::now();
  stet::append({&entry, 1});
  if (options_.speculator == nullptr) return;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  costs()->add(1 + entry.draft.size(), took.count());
}

STET_INL void Generator::processed(int32_t id) {
  GenerationState& state = session_.generation();
  detail::open_turn(session_, session_.size() - 1).end = session_.size();
  reply_.ids.push_back(id);
  if (!options_.ignore_eos && detail::is_stop_token(state, id)) {
    reply_stop_ = StopReason::eos;
    certain_ = text_.finish();  // the text excludes the stop token
  } else if (text_.push(id, &certain_)) {
    reply_stop_ = StopReason::stop_string;
  }
  text_.save(&state);
  reply_.text += certain_;
  if (!reply_stop_) return;
  reply_.stop = *reply_stop_;
  detail::close_turn(session_);  // before a sink, which may fork the session
}

STET_INL void Generator::run(const TextSink& sink) {
  bool goes_on = certain_.empty() || !sink || sink(certain_);
  while (goes_on) {
    const std::optional<int32_t> id = draw();
    if (!id) break;
    append(*id);
    processed(*id);
    goes_on = !sink || sink(certain_);
  }
}

STET_INL Reply Generator::finish() {
  if (options_.speculator != nullptr) session_.discard_drafted();
  reply_.stop = reply_stop_.value_or(StopReason::interrupted);
  if (reply_.stop == StopReason::stop_string) reply_.stop_string = text_.stop_string();
  if (reply_.stop == StopReason::eos || reply_.stop == StopReason::stop_string)
    detail::close_turn(session_);
  return std::move(reply_);
}

STET_INL Reply generate(Session& session, const Tokenizer* tokenizer,
                        const GenerateOptions& options, const TextSink& sink) {
  Generator generator(session, tokenizer, options);
  generator.run(sink);
  return generator.finish();
}

STET_INL std::string held_text(const GenerationState& state, const Tokenizer* tokenizer) {
  detail::ReplyText text(tokenizer, state.stop_strings);
  std::string rest;
  if (!text.restore(state, &rest)) rest += text.finish();
  return rest;
}

STET_INL std::string end_reply(Session& session, const Tokenizer* tokenizer) {
  session.refuse_changes("end_reply");
  std::string rest = held_text(session.generation(), tokenizer);
  detail::close_turn(session);
  return rest;
}

}  // namespace stet
