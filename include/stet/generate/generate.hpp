// The generation loop: draw a token, append it, decode it, check for a stop.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stet/base/error.hpp"
#include "stet/generate/speculate.hpp"
#include "stet/generate/stop.hpp"
#include "stet/session/session.hpp"
#include "stet/text/tokenizer.hpp"
#include "stet/text/utf8.hpp"

namespace stet {

// The reason why a reply ended.
enum class StopReason : uint8_t {
  eos,          // a stop token was drawn
  stop_string,  // a stop string was completed
  length,       // max_tokens, or the session is full; the reply stays open
  interrupted,  // the sink returned false; the reply stays open
};
const char* stop_reason_name(StopReason reason);  // "eos", "stop", "length", "interrupt"

// A generated reply, or the continuation of one.
struct Reply {
  std::vector<int32_t> ids;  // drawn in this call, including a stop token
  std::string text;          // their text, without special tokens and stop strings
  StopReason stop = StopReason::length;
  std::string stop_string = "";  // the one that ended it, or ""
  uint64_t drafted = 0,
           accepted = 0;  // drafted tokens that passes of this call processed; accepted
};

// Called after every token with the text that has become certain, which is often empty. Returning
// false ends the reply after this token. It may attach, prune, edit and change settings: the next
// token is drawn accordingly. It must not append to the session or rewind it.
using TextSink = std::function<bool(std::string_view)>;

// Receives every drawn token before it is processed, and the model's logits [vocab_size] that it
// was drawn from. Cannot change the draw.
using TokenObserver = std::function<void(int32_t id, std::span<const float> logits)>;

// Options of generate().
struct GenerateOptions {
  int64_t max_tokens = 256;
  bool ignore_eos = false;
  TokenObserver observe = nullptr;
  // Drafts tokens, so that a pass can process several. The reply is the same as without. A speculator
  // must outlive the reply. It serves one reply at a time: a batch takes each once. Null: no drafts.
  Speculator* speculator = nullptr;
};

// Returns the sampling settings and stop tokens that the checkpoint recommends.
GenerationState default_generation(const Model& model);

// Throws an argument Error for sampling settings out of range, and for biased tokens or stop ids
// outside the vocabulary. Also rejects stop strings that are not UTF-8 or not of 1 to 65536 bytes,
// and turns that are out of order or beyond `positions`. Errors name `source` unless it is empty.
void check_generation(const GenerationState& state, int64_t vocab_size, int64_t positions,
                      const std::string& source);

// Throws a mismatch Error for a tokenizer with tokens that the model lacks. Special tokens beyond
// the vocabulary are accepted: checkpoints name some that only other models of a series have.
void check_tokenizer(const Model& model, const Tokenizer& tokenizer);

// Appends a prompt and opens a turn. An open reply before it is closed first; end_reply() returns
// the text that it held back.
void append_prompt(Session& session, std::span<const int32_t> ids,
                   const Progress& progress = nullptr);
// Opens a turn for a prompt whose tokens, from `begin` on, were already processed.
void open_prompt_turn(Session& session, int64_t begin);

// Generates a reply, or continues one that was cut by its limit. The resulting session has the same
// bits wherever the reply was cut. Every drawn token has been processed, so the session's logits
// follow it.
//
// Text that may still become a stop string or a character is held back in the session. If the stop
// strings have changed since, the new ones apply to it. `tokenizer` may be null: the reply then has
// no text, and stop strings are an argument Error.
//
// Throws an argument Error, before anything is drawn, if the session has no tokens or
// check_generation() fails.
Reply generate(Session& session, const Tokenizer* tokenizer, const GenerateOptions& options,
               const TextSink& sink = nullptr);

// Returns the text that an open reply holds back, as end_reply() would. Changes nothing.
std::string held_text(const GenerationState& state, const Tokenizer* tokenizer);

// Closes an open reply and returns the end of its text, which was held back until then.
std::string end_reply(Session& session, const Tokenizer* tokenizer);

namespace detail {

// The text of a reply, with stop strings removed. Without a tokenizer, it stays empty.
class ReplyText {
 public:
  ReplyText(const Tokenizer* tokenizer, const std::vector<std::string>& stop_strings)
      : tokenizer_(tokenizer), matcher_(stop_strings) {
    if (tokenizer != nullptr) stream_.emplace(*tokenizer, true);
  }

  // Restores the text that the state holds back. Returns true if a stop string, which may have been
  // set since, is completed by it; see push().
  bool restore(const GenerationState& state, std::string* certain) {
    if (!stream_) return false;
    if (!state.stream.empty()) stream_->restore(state.stream);
    return match(state.held, certain);
  }
  // Sets `certain` to the text that has become certain with this token. Returns true if a stop
  // string was completed.
  bool push(int32_t id, std::string* certain) {
    certain->clear();
    if (!stream_ || id >= tokenizer_->size())
      return false;  // a model may have more ids than its tokenizer
    return match(stream_->push(id), certain);
  }
  // Returns the stop string that was completed, or "".
  const std::string& stop_string() const { return stop_string_; }
  // Completes the reply and returns the text that was held back.
  std::string finish() {
    if (!stream_) return "";
    std::string rest;
    match(stream_->finish(), &rest);
    return rest + matcher_.flush();
  }
  void save(GenerationState* state) const {
    state->stream = stream_ ? stream_->state() : "";
    state->held = matcher_.pending();
  }

 private:
  bool match(const std::string& text, std::string* certain) {
    StopMatcher::Result r = matcher_.push(text);
    *certain = std::move(r.text);
    if (r.stop < 0) return false;
    stop_string_ = matcher_.strings()[static_cast<size_t>(r.stop)];
    return true;
  }

  const Tokenizer* tokenizer_;
  std::optional<TextStream> stream_;
  StopMatcher matcher_;
  std::string stop_string_;
};

inline bool is_stop_token(const GenerationState& state, int32_t id) {
  return std::find(state.stop_ids.begin(), state.stop_ids.end(), id) != state.stop_ids.end();
}

void close_turn(Session& session);

}  // namespace detail

// generate() in steps, for callers that process tokens of many sessions together. Each token
// returned by draw() must go through accept() or a pass, alone or in a batch, and then to
// processed(). Session and tokenizer must outlive the generator. The constructor throws what
// generate() throws.
class Generator {
 public:
  Generator(Session& session, const Tokenizer* tokenizer, const GenerateOptions& options);
  ~Generator() {
    if (options_.speculator != nullptr) session_.discard_drafted();
  }
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  // Returns the next token, or nothing if the reply has ended.
  std::optional<int32_t> draw();
  // Appends a token whose drafted row the session holds. Returns false, and does nothing, if there
  // is none: the token then needs a pass.
  bool accept(int32_t id);
  // Asks for a draft of the tokens after `id`, which the pass of `id` may process, too.
  DraftChoice consider(int32_t id);
  // Returns the tokens of that draft that were chosen, valid until the next call. Before that, lets
  // the drafter catch up as chosen.
  std::span<const int32_t> draft(int32_t id, const DraftChoice& choice);
  // Returns the measured costs of passes; null without speculation.
  PassCosts* costs() const {
    return options_.speculator == nullptr ? nullptr : &options_.speculator->costs();
  }
  // Accepts a token, or processes it with a draft in a pass of its own.
  void append(int32_t id);
  // Reports that the session has processed this token, the drawn one or another in its place.
  void processed(int32_t id);
  // Returns the text that the last step made certain; initially that of the constructor.
  const std::string& certain() const { return certain_; }
  // Returns the reply so far. Its `stop` is length until another reason is known.
  const Reply& reply() const { return reply_; }
  // Draws and processes tokens until the reply has ended or the sink returns false.
  void run(const TextSink& sink);
  // Returns the reply. If it has not ended, it counts as interrupted. Must be the last call.
  Reply finish();

 private:
  static Session& checked(Session& session, const Tokenizer* tokenizer);

  Session& session_;
  GenerateOptions options_;
  Sampler sampler_;
  detail::ReplyText text_;
  std::string certain_;
  Reply reply_;
  std::optional<StopReason> reply_stop_;
};

inline void open_prompt_turn(Session& session, int64_t begin) {
  detail::close_turn(session);
  session.generation().turns.push_back({begin, session.size(), session.size(), true});
}

}  // namespace stet

#ifndef STET_SEPARATE
#include "stet/generate/generate-inl.hpp"
#endif
