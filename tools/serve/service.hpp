// What all interfaces share: from a request's messages, text or state to a session that is ready to
// reply, its replies, and the states that they leave.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "stet/chat/conversation.hpp"
#include "tools/serve/engine.hpp"
#include "tools/serve/fields.hpp"
#include "tools/serve/states.hpp"

namespace stet::serve {

// For whom work is done, and whether it is still wanted.
struct Caller {
  std::string client;
  Gone gone;
  double since = 0;  // when the request came
  double until = 0;  // its deadline; 0: none
};

struct Service {
  Service(std::shared_ptr<const Model> model_, std::shared_ptr<const Tokenizer> tokenizer_,
          const SessionOptions& session_, const StatesOptions& states_,
          const EngineOptions& engine_, double deadline_);

  // Its work ends when the client has gone, or its time is over.
  Caller caller(const Request& request) const;
  const Tokenizer& need_tokenizer() const;
  // By the engine's passes, as long as somebody waits for it.
  Appender appender(const Caller& caller);
  // A session of a state; `usage` takes in what that cost.
  Session open(const Caller& caller, const NodePtr& node, Usage* usage = nullptr) {
    return states.open(node, appender(caller), usage);
  }

  std::shared_ptr<const Model> model;
  std::shared_ptr<const Tokenizer> tokenizer;
  SessionOptions session;
  States states;
  Engine engine;
  std::string name;         // of the model
  std::string fingerprint;  // of model and contract
  double deadline;          // seconds of a request; 0: none
  int64_t started;
  std::atomic<int64_t> verified_tokens{0};
  // From when a request came: to the first token of its reply, and to the end of its answer (of
  // those that need a place).
  Histogram first_token_seconds, request_seconds;
};

// A session of raw text, or a conversation.
class Talk {
 public:
  Talk(Session session, std::shared_ptr<const Tokenizer> tokenizer, bool chat);
  Talk fork() const;
  Session& session() { return chat_ ? chat_->session() : *raw_; }
  Conversation* conversation() { return chat_ ? &*chat_ : nullptr; }

 private:
  Talk() = default;
  std::optional<Session> raw_;
  std::optional<Conversation> chat_;
};

// How replies are drawn: what was given replaces what the checkpoint or the state says.
struct DrawOptions {
  std::optional<double> temperature, top_p, min_p, typical_p, repetition_penalty;
  std::optional<double> frequency_penalty, presence_penalty;
  std::optional<std::vector<TokenBias>> logit_bias;
  std::optional<int64_t> top_k, seed, max_tokens;
  std::optional<std::vector<std::string>> stop;
  bool ignore_eos = false;
  std::optional<int32_t> choose;  // the first token
  int64_t n = 1;
  int top_logprobs = -1;  // -1: none; else with so many others

  void apply(GenerationState& state, const Model& model) const;
};
// The fields that all interfaces name alike. Ids of tokens are below `vocab_size`.
DrawOptions read_draw(Fields& fields, int64_t vocab_size);

struct TokenLogprob {
  int32_t id;
  double logprob;
  std::vector<std::pair<int32_t, double>> top;
};

// A state that a request goes on from.
struct Prompted {
  Talk talk;
  Usage usage;
  std::string parent;  // its handle; "": none
  Json operation;
};

// Without an id: the rendering of the messages, and nothing else, whatever is known already. Long
// prompts are refused with both numbers.
Prompted prompt_messages(Service& service, const Caller& caller, std::vector<Message> messages,
                         ChatState chat);
Prompted prompt_ids(Service& service, const Caller& caller, const std::vector<int32_t>& ids);
// With an id: the state as it is, with messages, or text, behind it.
Prompted resume(Service& service, const Caller& caller, const NodePtr& node);
void say(Service& service, const Caller& caller, Prompted& prompted, std::vector<Message> more);
void append_text(Service& service, const Caller& caller, Prompted& prompted,
                 std::span<const int32_t> ids);

struct ReplyPiece {
  size_t choice;
  std::string text;
  std::vector<int32_t> ids;
  std::vector<TokenLogprob> logprobs;
};
struct ReplyResult {
  Reply reply;
  std::vector<TokenLogprob> logprobs;
  NodePtr node;
  bool cancelled = false;
};
// Draws n replies, each with a fork and a seed of its own, and keeps the states after them. `sink`
// hears of what is certain as it comes, in this thread; false ends it. Where the client has gone,
// what was drawn until then is kept, and Cancelled thrown.
std::vector<ReplyResult> draw_replies(Service& service, const Caller& caller, Prompted& prompted,
                                      const DrawOptions& options,
                                      const std::function<bool(const ReplyPiece&)>& sink);

// An answer that comes as events: `body` runs once there is a place among the streams, and what it
// throws is the last event. While it waits, comments keep the connection alive.
Response stream_events(Service& service, const Request& request,
                       std::function<void(const Caller&, Writer&)> body);
// The same in one piece.
Response answer_at_once(Service& service, const Request& request,
                        const std::function<Json(const Caller&)>& body);
// Throws the error of a prompt that cannot be processed, before anything is.
void check_messages(const Service& service, const std::vector<Message>& messages,
                    const ChatState& chat);

// Messages of a request: role and content, which may be a list of text parts.
std::vector<Message> read_messages(Fields& fields, const std::string& name);
std::string read_content(const Json& content, const std::string& pointer);
Json logprob_json(const Tokenizer* tokenizer, const TokenLogprob& token);
// The bytes of a token, whether or not they are text.
std::string token_bytes(const Tokenizer* tokenizer, int32_t id);
Json bytes_json(const std::string& bytes);
std::vector<std::pair<int32_t, double>> top_candidates(std::span<const float> logits, size_t n);

}  // namespace stet::serve
