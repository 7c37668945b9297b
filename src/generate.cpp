#include "stet/generate.hpp"

#include <algorithm>
#include <optional>

#include "stet/error.hpp"
#include "stet/stop.hpp"

namespace stet {
namespace {

// Text of the reply, with stop strings taken out. Without a tokenizer, nothing.
class ReplyText {
 public:
  ReplyText(const Tokenizer* tokenizer, const GenerationState& state) : matcher_(state.stop_strings) {
    if (tokenizer == nullptr) return;
    stream_.emplace(*tokenizer, true);
    if (!state.stream.empty()) stream_->restore(state.stream);
    if (!state.held.empty()) matcher_.restore(state.held);
  }

  // Text that is certain after this token; true when a stop string was completed.
  bool push(int32_t id, std::string* certain) {
    if (!stream_) return false;
    const StopMatcher::Result r = matcher_.push(stream_->push(id));
    *certain = r.text;
    return r.stop >= 0;
  }
  // The reply is complete: nothing is held back any more.
  std::string finish() {
    if (!stream_) return "";
    std::string rest = matcher_.push(stream_->finish()).text;
    return rest + matcher_.flush();
  }
  void save(GenerationState* state) const {
    state->stream = stream_ ? stream_->state() : "";
    state->held = matcher_.pending();
  }

 private:
  std::optional<TextStream> stream_;
  StopMatcher matcher_;
};

bool is_stop(const GenerationState& state, int32_t id) {
  return std::find(state.stop_ids.begin(), state.stop_ids.end(), id) != state.stop_ids.end();
}

Turn& open_turn(Session& session) {
  std::vector<Turn>& turns = session.generation().turns;
  const int64_t at = session.size();
  if (turns.empty()) turns.push_back({0, at, at, true});
  if (!turns.back().open) turns.push_back({at, at, at, true});
  return turns.back();
}

void close_turn(Session& session) {
  GenerationState& state = session.generation();
  if (!state.turns.empty()) state.turns.back().open = false;
  state.stream.clear();
  state.held.clear();
}

}  // namespace

GenerationState default_generation(const Model& model) {
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

void append_prompt(Session& session, std::span<const int32_t> ids, const Progress& progress) {
  const int64_t at = session.size();
  session.append(ids, nullptr, nullptr, progress);
  close_turn(session);
  session.generation().turns.push_back({at, session.size(), session.size(), true});
}

Reply generate(Session& session, const Tokenizer* tokenizer, const GenerateOptions& options, const TextSink& sink) {
  GenerationState& state = session.generation();
  state.sampling.validate("");
  if (session.size() == 0) throw Error(ErrorKind::argument, "", "prompt", "at least one token", "none");
  if (tokenizer == nullptr && !state.stop_strings.empty()) {
    throw Error(ErrorKind::argument, "", "stop strings", "a tokenizer to match them in text", "none");
  }
  Sampler sampler(static_cast<int>(session.model().config().vocab_size));
  ReplyText text(tokenizer, state);
  Reply reply;
  reply.stop = "length";
  std::string certain;
  const auto emit = [&](const std::string& piece) {
    reply.text += piece;
    return !sink || piece.empty() || sink(piece);
  };
  open_turn(session);
  bool going = true;
  while (going && static_cast<int64_t>(reply.ids.size()) < options.max_tokens && session.size() < session.capacity()) {
    const int32_t id = sampler.sample(state.sampling, session.logits(), session.tokens(),
                                      static_cast<uint64_t>(session.size()));
    session.append({&id, 1});
    reply.ids.push_back(id);
    state.turns.back().end = session.size();
    const bool eos = !options.ignore_eos && is_stop(state, id);
    certain.clear();
    const bool stopped = !eos && text.push(id, &certain);  // a stop token is no part of the text
    const bool wanted = emit(certain);
    if (stopped || eos) reply.stop = stopped ? "stop" : "eos";
    else if (!wanted) reply.stop = "interrupt";
    going = !stopped && !eos && wanted;
    text.save(&state);
  }
  if (reply.stop == "eos") emit(text.finish());
  if (reply.stop == "eos" || reply.stop == "stop") close_turn(session);
  return reply;
}

}  // namespace stet
