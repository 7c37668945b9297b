// What all interfaces share: from a request's messages, text or state to a session that is ready to
// reply, its replies, and the states that they leave.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "stet/chat/conversation.hpp"
#include "tools/prompt/exchange.hpp"
#include "tools/serve/engine.hpp"
#include "tools/serve/fields.hpp"
#include "tools/serve/states.hpp"

namespace stet::serve {

using tool::Exchange;

// For whom work is done, and whether it is still wanted.
struct Caller {
  std::string client;
  CancelCheck cancelled;
  double since = 0;  // when the request came
  double until = 0;  // its deadline; 0: none
};

// Lets one request at a time make tokens of a long text.
struct TokenizerGate {
  std::mutex mutex;
  std::condition_variable free;
  bool busy = false;
};

struct Service {
  Service(std::shared_ptr<const Model> model_, std::shared_ptr<const Tokenizer> tokenizer_,
          const SessionOptions& session_, const StatesOptions& states_,
          const EngineOptions& engine_, double deadline_);

  // Its work ends when the client has gone, or its time is over.
  Caller caller(const Request& request) const;
  const Tokenizer& need_tokenizer() const;
  // Whether requests may call the model so.
  bool is_name(const std::string& model_name) const;
  size_t longest_token() const;  // in bytes; at least 1
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
  std::string name;                  // of the model
  std::vector<std::string> aliases;  // other names for it
  std::string fingerprint;           // of model and contract
  double deadline;                   // seconds of a request; 0: none
  int64_t started;
  std::atomic<int64_t> verified_tokens{0};
  TokenizerGate tokenizing;
  // From when a request came: to the first token of its reply, and to the end of its answer (of
  // those that need a place).
  Histogram first_token_seconds, request_seconds;

 private:
  mutable std::once_flag measured_;
  mutable size_t longest_token_ = 1;
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
  // Of a reply that its length ends: text that may yet become a stop string, or a character, waits
  // in the state for the one who goes on with it. Else it is told at the end.
  bool hold_back = false;

  void apply(GenerationState& state, const Model& model) const;
  // Throws the errors that a reply with these settings would begin with.
  void check(const Service& service, GenerationState state) const;
  // For a request that has settings of its own, and none of an earlier one's: where it samples and
  // names no seed, it draws one. Throws what check() does.
  void settle(const Service& service);
  // What a reply tells, so that the same request with it draws the same.
  int64_t reported_seed() const { return seed.value_or(0); }
};

struct TokenLogprob {
  int32_t id;
  double logprob;
  std::vector<std::pair<int32_t, double>> top;
};

// A state that a reply goes on from.
struct PreparedPrompt {
  Exchange exchange;
  Usage usage;
  std::string parent;  // its handle; "": none
  Json operation;
  std::string known_text = "";  // text at the beginning of the reply that is known to whoever asks
  // Of a prompt's own tokens, where they were asked for: none of the first token of all.
  std::vector<std::optional<TokenLogprob>> prompt_logprobs = {};
};

// How a request's messages become a prompt.
struct ChatOptions {
  ChatState state;
  // A last message of the assistant is the beginning of the reply. Else it is a whole one.
  bool continues = true;
};

// A prompt that was checked, all but for being processed: what is to be refused is refused before
// the first byte of an answer. It is called once.
using CheckedPrompt = std::function<PreparedPrompt(const Caller&)>;
// Without a node: the rendering of the messages, and nothing else, whatever is known already. With
// one: the state as it is, with messages behind it, and the model's settings in place of its own.
// Long prompts are refused with both numbers.
CheckedPrompt check_messages(Service& service, const Caller& caller, const NodePtr& node,
                             std::vector<Message> messages, const ChatOptions& chat);
// Such a prompt, whether or not it fits.
struct Rendered {
  std::string text;
  std::vector<int32_t> ids;
  int64_t now;  // the time that the template was told
};
Rendered render_prompt(Service& service, const Caller& caller, const NodePtr& node,
                       std::vector<Message> messages, const ChatOptions& chat);
// The same of tokens of text.
struct TokenPrompt {
  std::vector<int32_t> ids;
  int64_t room = 1;       // how many tokens there must be room for behind them
  int top_logprobs = -1;  // of these tokens themselves; -1: none
};
CheckedPrompt check_ids(Service& service, const Caller& caller, const NodePtr& node,
                        TokenPrompt asked);

// The same at once, and with the settings of the state.
PreparedPrompt prompt_messages(Service& service, const Caller& caller,
                               std::vector<Message> messages, const ChatOptions& chat);
PreparedPrompt prompt_ids(Service& service, const Caller& caller, const std::vector<int32_t>& ids);
PreparedPrompt resume(Service& service, const Caller& caller, const NodePtr& node);
void append_text(Service& service, const Caller& caller, PreparedPrompt& prompted,
                 std::span<const int32_t> ids);

// Messages behind those of a state, in two steps. The first checks, and changes nothing.
Conversation::Plan plan_more(Service& service, const Caller& caller, const PreparedPrompt& prompted,
                             std::vector<Message> more, bool continues);
void process_plan(Service& service, const Caller& caller, PreparedPrompt& prompted,
                  const Conversation::Plan& plan);
// Throws the error of tokens that do not fit behind what the session holds.
void check_room(const Session& session, std::span<const int32_t> ids, int64_t room = 1);

// Text of a request as tokens. A text that could not fit a context is refused before; of long ones
// one at a time is looked at, because that takes many times their memory.
std::vector<int32_t> encode_text(Service& service, const Caller& caller, const std::string& text,
                                 Tokenizer::Bos bos);
// For whoever makes tokens of so many bytes by itself.
class TokenizeTurn {
 public:
  TokenizeTurn(Service& service, const Caller& caller, size_t bytes);
  ~TokenizeTurn();
  TokenizeTurn(const TokenizeTurn&) = delete;
  TokenizeTurn& operator=(const TokenizeTurn&) = delete;

 private:
  TokenizerGate* held_ = nullptr;
};

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
std::vector<ReplyResult> draw_replies(Service& service, const Caller& caller,
                                      PreparedPrompt& prompted, const DrawOptions& options,
                                      const std::function<bool(const ReplyPiece&)>& sink);

// An answer that comes as events. Once there is a place among the streams, `prepare` checks what is
// asked: what it throws is the answer. What it returns runs then, and what that throws is the last
// event, called "error". While it waits, comments keep the connection alive.
using StreamBody = std::function<void(const Caller&, Writer&)>;
using ErrorEvent = std::function<Json(const RequestError&)>;
Response stream_events(Service& service, const Request& request,
                       const std::function<StreamBody(const Caller&)>& prepare,
                       const ErrorEvent& error_event = nullptr);
// An answer in one piece.
Response answer_at_once(Service& service, const Request& request,
                        const std::function<Json(const Caller&)>& body);
Response respond_at_once(Service& service, const Request& request,
                         const std::function<Response(const Caller&)>& body);
// Tokens as answers show them (logprobs.cpp).
Json logprob_json(const Tokenizer* tokenizer, const TokenLogprob& token);
// The bytes of a token, whether or not they are text.
std::string token_bytes(const Tokenizer* tokenizer, int32_t id);
Json bytes_json(const std::string& bytes);
std::vector<std::pair<int32_t, double>> top_candidates(std::span<const float> logits, size_t n);

}  // namespace stet::serve
