// Shared by all interfaces: sessions from a request's messages, text or state, the drawing of
// replies, and the states after them.
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

// The client of some work, and whether the work is cancelled.
struct Caller {
  std::string client;
  CancelCheck cancelled;
  double since = 0;  // time of the request
  double until = 0;  // its deadline, or 0
};

// Lets one request at a time tokenize a long text.
struct TokenizerGate {
  std::mutex mutex;
  std::condition_variable free;
  bool busy = false;
};

struct Service {
  Service(std::shared_ptr<const Model> model_, std::shared_ptr<const Tokenizer> tokenizer_,
          const SessionOptions& session_, const StatesOptions& states_,
          const EngineOptions& engine_, double deadline_);

  // Returns the caller of a request. Its work is cancelled when the client disconnects, the
  // deadline passes or the server stops.
  Caller caller(const Request& request) const;
  const Tokenizer& need_tokenizer() const;
  // Returns true if this is a name of the model.
  bool is_name(const std::string& model_name) const;
  size_t longest_token() const;  // in bytes, at least 1
  // Returns a function that appends tokens by the engine's passes until the caller is cancelled.
  Appender appender(const Caller& caller);
  // Returns a session of a state, and adds its cost to `usage`.
  Session open(const Caller& caller, const NodePtr& node, Usage* usage = nullptr) {
    return states.open(node, appender(caller), usage);
  }

  std::shared_ptr<const Model> model;
  std::shared_ptr<const Tokenizer> tokenizer;
  SessionOptions session;
  States states;
  Engine engine;
  std::string name;                  // name of the model
  std::vector<std::string> aliases;  // other names of the model
  std::string fingerprint;           // identifies model and contract
  double deadline;                   // seconds per request, or 0
  int64_t started;
  std::atomic<bool> stopping{false};  // running requests are cancelled
  std::atomic<int64_t> verified_tokens{0};
  TokenizerGate tokenizing;
  // Times from a request to the first token of its reply, and to the end of its answer. Only
  // requests that take a lease count.
  Histogram first_token_seconds, request_seconds;

 private:
  mutable std::once_flag measured_;
  mutable size_t longest_token_ = 1;
};

// Sampling settings of a request. Given ones override those of the checkpoint or the state.
struct DrawOptions {
  std::optional<double> temperature, top_p, min_p, typical_p, repetition_penalty;
  std::optional<double> frequency_penalty, presence_penalty;
  std::optional<std::vector<TokenBias>> logit_bias;
  std::optional<int64_t> top_k, seed, max_tokens;
  std::optional<std::vector<std::string>> stop;
  bool ignore_eos = false;
  std::optional<int32_t> choose;  // id of the first token
  int64_t n = 1;
  int top_logprobs = -1;  // number of alternatives per token; -1: no log-probabilities
  // Decides what happens to text that may yet become a stop string or a character when a reply ends
  // by its length. If set, the text waits in the state for the continuation. Else it is sent.
  bool hold_back = false;

  void apply(GenerationState& state, const Model& model) const;
  // Throws the errors that a reply with these settings would throw.
  void check(const Service& service, GenerationState state) const;
  // Settles the settings of a request that uses none of an earlier one. Draws a seed if it samples
  // without one. Throws as check() does.
  void settle(const Service& service);
  // Returns the seed to report, with which the same request draws the same reply.
  int64_t reported_seed() const { return seed.value_or(0); }
};

struct TokenLogprob {
  int32_t id;
  double logprob;
  std::vector<std::pair<int32_t, double>> top;
};

// A state that is ready for a reply.
struct PreparedPrompt {
  Exchange exchange;
  Usage usage;
  Parent parent;  // the state that it continues, or none
  Json operation;
  std::string known_text = "";  // beginning of the reply that the caller knows already
  // The log-probabilities of the prompt's tokens, if wanted. The first token has none.
  std::vector<std::optional<TokenLogprob>> prompt_logprobs = {};
};

// The settings with which a request's messages become a prompt.
struct ChatOptions {
  ChatState state;
  // A last message of the assistant is the beginning of the reply, not a whole one.
  bool continues = true;
};

// A prompt that was checked but not processed. Errors are thrown before the first byte of an
// answer. Call it once.
using CheckedPrompt = std::function<PreparedPrompt(const Caller&)>;
// Checks messages. Without a node, the prompt is exactly their rendering, whatever is cached. With
// a node, they follow the state as it is, under the model's settings. Throws for prompts that are
// too long.
CheckedPrompt check_messages(Service& service, const Caller& caller, const NodePtr& node,
                             std::vector<Message> messages, const ChatOptions& chat);
// A rendered prompt, which need not fit the context.
struct Rendered {
  std::string text;
  std::vector<int32_t> ids;
  int64_t now;  // the time given to the template
};
Rendered render_prompt(Service& service, const Caller& caller, const NodePtr& node,
                       std::vector<Message> messages, const ChatOptions& chat);
// A prompt of token ids.
struct TokenPrompt {
  std::vector<int32_t> ids;
  int64_t room = 1;       // tokens that must fit after them
  int top_logprobs = -1;  // number of alternatives for each; -1: no log-probabilities
};
CheckedPrompt check_ids(Service& service, const Caller& caller, const NodePtr& node,
                        TokenPrompt asked);

// Processes messages at once, under the settings of the state.
PreparedPrompt prompt_messages(Service& service, const Caller& caller,
                               std::vector<Message> messages, const ChatOptions& chat);
PreparedPrompt prompt_ids(Service& service, const Caller& caller, const std::vector<int32_t>& ids);
PreparedPrompt resume(Service& service, const Caller& caller, const NodePtr& node);
void append_text(Service& service, const Caller& caller, PreparedPrompt& prompted,
                 std::span<const int32_t> ids);

// Adds messages to those of a state, in two steps. The first one checks and changes nothing.
Conversation::Plan plan_more(Service& service, const Caller& caller, const PreparedPrompt& prompted,
                             std::vector<Message> more, bool continues);
// Plans these messages in place of those of a conversation. Only the last of them is new.
Conversation::Plan plan_edit(Service& service, const Caller& caller,
                             const Conversation& conversation, std::vector<Message> messages);
void process_plan(Service& service, const Caller& caller, PreparedPrompt& prompted,
                  const Conversation::Plan& plan);
// Throws if the tokens do not fit after those of the session.
void check_room(const Session& session, std::span<const int32_t> ids, int64_t room = 1);

// Tokenizes text of a request. Throws first if it cannot fit the context. Long texts are tokenized
// one at a time, because that takes many times their memory.
std::vector<int32_t> encode_text(Service& service, const Caller& caller, const std::string& text,
                                 Tokenizer::Bos bos);
// Waits for the turn to tokenize a text of `bytes` bytes, and holds it while this object lives. For
// callers that tokenize the text themselves.
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
// Draws n replies, each from a fork and with a seed of its own, and keeps the states after them.
// Calls `sink` in this thread with text as it becomes certain; false ends the replies. If the
// client disconnects, keeps the drawn tokens and throws Cancelled.
std::vector<ReplyResult> draw_replies(Service& service, const Caller& caller,
                                      PreparedPrompt& prompted, const DrawOptions& options,
                                      const std::function<bool(const ReplyPiece&)>& sink);

// Returns an answer as a stream of events. With a lease, `prepare` checks the request; its
// exception is the answer. The function that it returns writes the events; its exception becomes
// the last event, "error". Comments keep the connection alive meanwhile.
using StreamBody = std::function<void(const Caller&, Writer&)>;
using ErrorEvent = std::function<Json(const RequestError&)>;
Response stream_events(Service& service, const Request& request,
                       const std::function<StreamBody(const Caller&)>& prepare,
                       const ErrorEvent& error_event = nullptr);
// Returns an answer in one piece.
Response answer_at_once(Service& service, const Request& request,
                        const std::function<Json(const Caller&)>& body);
Response respond_at_once(Service& service, const Request& request,
                         const std::function<Response(const Caller&)>& body);
// Returns an answer made from sessions of states. Takes a lease only if one is not in memory.
Response respond_from(Service& service, const Request& request, const std::vector<NodePtr>& nodes,
                      const std::function<Response(std::vector<Session>&)>& body);
// Return tokens in the form of answers (logprobs.cpp).
Json logprob_json(const Tokenizer* tokenizer, const TokenLogprob& token);
// Returns the bytes of a token, which need not be valid text.
std::string token_bytes(const Tokenizer* tokenizer, int32_t id);
Json bytes_json(const std::string& bytes);
std::vector<std::pair<int32_t, double>> top_candidates(std::span<const float> logits, size_t n);

}  // namespace stet::serve
