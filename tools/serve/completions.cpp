// OpenAI's chat completions and completions APIs.
#include <fmt/format.h>

#include "stet/base/error.hpp"
#include "stet/text/utf8.hpp"
#include "tools/serve/routes.hpp"
#include "tools/serve/text_offsets.hpp"

namespace stet::serve {
namespace {

constexpr size_t kMostPrompts = 256;

const char* finish_reason(const Reply& reply) {
  return reply.stop == StopReason::length ? "length" : "stop";
}

// A prompt of a request: text, or token ids instead.
struct TextPrompt {
  std::optional<std::string> text;
  std::vector<int32_t> ids;
};

// A request for chat completions or for text completions.
struct CompletionRequest {
  DrawOptions draw;
  bool chat = true, stream = false, include_usage = false, echo = false, logprobs = false;
  std::vector<Message> messages;
  ChatOptions state;
  std::vector<TextPrompt> prompts;
  bool several = false;  // the prompts were given as a list
  NodePtr from;
  std::string id, model;

  Json head(const Service& service) const {
    const char* kind =
        chat ? (stream ? "chat.completion.chunk" : "chat.completion") : "text_completion";
    return {{"id", id},
            {"object", kind},
            {"created", now()},
            {"model", model},
            {"seed", draw.reported_seed()},
            {"system_fingerprint", service.fingerprint}};
  }
};

// ---------------------------------------------------------------- fields

void read_stream_options(CompletionRequest& c, const Field& f, const BodyContext&) {
  auto options = f.object();
  if (!options) return;
  c.include_usage = (*options)["include_usage"].boolean().value_or(false);
  (*options)["include_obfuscation"].neutral({false, true});
  options->finish();
}

BodyFields<CompletionRequest> openai_fields() {
  using C = CompletionRequest;
  return BodyFields<C>()
      .field("model", "string",
             [](C& c, const Field& f, const BodyContext& context) {
               c.model = read_model(f, context);
             })
      .part(&C::draw, draw_fields())
      .field(
          "n", "integer",
          [](C& c, const Field& f, const BodyContext&) { c.draw.n = f.integer(1, 16).value_or(1); })
      .boolean("stream", &C::stream)
      .field("stream_options", "object", read_stream_options)
      .field("resume_from", "string",
             [](C& c, const Field& f, const BodyContext& context) {
               c.from = read_resume_from(f, context);
             })
      .unused("string", {"user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"})
      .unused("object", {"metadata"});
}

BodyFields<CompletionRequest> chat_completion_fields() {
  using C = CompletionRequest;
  return openai_fields()
      .required("messages", "array",
                [](C& c, const Field& f, const BodyContext&) { c.messages = read_messages(f); })
      .part(&C::state, chat_fields())
      .field("max_completion_tokens", "integer",
             [](C& c, const Field& f, const BodyContext&) {
               c.draw.max_tokens = f.integer(1, kMaxPositions);
             })
      .field("max_tokens", "integer",
             [](C& c, const Field& f, const BodyContext&) {
               const auto older = f.integer(1, kMaxPositions);
               if (!c.draw.max_tokens) c.draw.max_tokens = older;
             })
      .boolean("logprobs", &C::logprobs)
      .field("top_logprobs", "integer",
             [](C& c, const Field& f, const BodyContext&) {
               const auto top = f.integer(0, 20);
               if (top && *top > 0 && !c.logprobs)
                 throw RequestError(400, "invalid_value", f.pointer() + " needs \"logprobs\": true",
                                    f.pointer());
               if (c.logprobs) c.draw.top_logprobs = static_cast<int>(top.value_or(0));
             })
      .neutral("tools", "array", {Json::array()})
      .neutral("tool_choice", "string", {"none", "auto"})
      .neutral("parallel_tool_calls", "boolean", {true, false})
      .neutral("functions", "array", {Json::array()})
      .neutral("function_call", "string", {"none", "auto"})
      .neutral("response_format", "object", {Json{{"type", "text"}}})
      .neutral("modalities", "array", {Json::array({"text"})})
      .neutral("store", "boolean", {false})
      .neutral("service_tier", "string", {"auto", "default"})
      .neutral("audio", "object")
      .neutral("prediction", "object")
      .neutral("reasoning_effort", "string", {"none"})
      .neutral("verbosity", "string", {"medium"})
      .neutral("web_search_options", "object");
}

TextPrompt read_prompt(const Service& service, const Json& prompt, const std::string& pointer) {
  if (prompt.is_string()) return {prompt.get<std::string>(), {}};
  if (!prompt.is_array())
    refuse(pointer, "a string or token ids", printable(tool::dump(prompt), 60));
  return {std::nullopt, read_ids(prompt, pointer, service.model->config().vocab_size)};
}

void read_prompts(CompletionRequest& c, const Field& f, const BodyContext& context) {
  const Service& service = context.service;
  const Json* const prompt = f.value();
  if (prompt == nullptr) refuse(f.pointer(), "a string or token ids", "nothing", "missing_field");
  c.several = prompt->is_array() && !prompt->empty() && !prompt->front().is_number();
  if (!c.several) {
    c.prompts = {read_prompt(service, *prompt, f.pointer())};
    return;
  }
  if (prompt->size() > kMostPrompts)
    refuse(f.pointer(), fmt::format("at most {} prompts", kMostPrompts),
           std::to_string(prompt->size()));
  for (const Json& one : *prompt)
    c.prompts.push_back(
        read_prompt(service, one, fmt::format("{}/{}", f.pointer(), c.prompts.size())));
}

BodyFields<CompletionRequest> completion_fields() {
  using C = CompletionRequest;
  return openai_fields()
      .required("prompt", "any", read_prompts)
      .field("max_tokens", "integer",
             [](C& c, const Field& f, const BodyContext&) {
               c.draw.max_tokens = f.integer(0, kMaxPositions).value_or(16);
             })
      .field("logprobs", "integer",
             [](C& c, const Field& f, const BodyContext&) {
               if (const auto top = f.integer(0, 20)) c.draw.top_logprobs = static_cast<int>(*top);
             })
      .boolean("echo", &C::echo)
      .neutral("suffix", "string")
      .field("best_of", "integer", [](C& c, const Field& f, const BodyContext&) {
        f.neutral({1, c.draw.n});
      });
}

// ---------------------------------------------------------------- prompts

// A checked prompt, and its text if it is echoed.
struct EchoedPrompt {
  CheckedPrompt prompt;
  std::string text;
  std::vector<int32_t> ids;
};

EchoedPrompt check_prompt(Service& service, const Caller& caller, const CompletionRequest& c,
                          const TextPrompt& prompt) {
  EchoedPrompt checked;
  checked.ids = prompt.text ? encode_text(service, caller, *prompt.text,
                                          c.from ? Tokenizer::Bos::off : Tokenizer::Bos::automatic)
                            : prompt.ids;
  if (c.echo && prompt.text)
    checked.text = *prompt.text;
  else if (c.echo && service.tokenizer != nullptr)
    checked.text = service.tokenizer->decode(checked.ids, true);
  checked.prompt =
      check_ids(service, caller, c.from,
                {checked.ids, *c.draw.max_tokens == 0 ? 0 : 1, c.echo ? c.draw.top_logprobs : -1});
  return checked;
}

std::vector<EchoedPrompt> check(Service& service, const Caller& caller,
                                const CompletionRequest& c) {
  std::vector<EchoedPrompt> all;
  if (c.chat) all.push_back({check_messages(service, caller, c.from, c.messages, c.state), "", {}});
  for (size_t i = 0; i < c.prompts.size(); ++i)
    all.push_back(for_field(c.several ? fmt::format("/prompt/{}", i) : "/prompt",
                            [&] { return check_prompt(service, caller, c, c.prompts[i]); }));
  return all;
}

// ---------------------------------------------------------------- log-probabilities

Json chat_logprobs(const Service& service, const std::vector<TokenLogprob>& all) {
  Json content = Json::array();
  for (const TokenLogprob& t : all) content.push_back(logprob_json(service.tokenizer.get(), t));
  return {{"content", content}, {"refusal", nullptr}};
}

// Log-probabilities of text completions, in the order of the tokens. A token is released once its
// offset in the text is certain.
class TextLogprobs {
 public:
  explicit TextLogprobs(const Tokenizer* tokenizer) : tokenizer_(tokenizer), offsets_(tokenizer) {}

  void add(int32_t id, const TokenLogprob* logprob) {
    waiting_.push_back(entry(id, logprob));
    settle(offsets_.push(id));
  }
  // Ends a text. The next one begins after `at` characters.
  void end(size_t at = 0) { settle(offsets_.finish(at)); }
  // Returns the log-probabilities released since the last call.
  Json take() {
    Json j = {{"tokens", Json::array()},
              {"token_logprobs", Json::array()},
              {"top_logprobs", Json::array()},
              {"text_offset", Json::array()}};
    for (Json& e : settled_) {
      for (auto& [name, value] : e.items()) j[name].push_back(std::move(value));
    }
    settled_.clear();
    return j;
  }
  bool any() const { return !settled_.empty(); }

 private:
  Json entry(int32_t id, const TokenLogprob* logprob) const {
    Json e = {{"tokens", utf8_lossy(token_bytes(tokenizer_, id))},
              {"token_logprobs", nullptr},
              {"top_logprobs", nullptr}};
    if (logprob == nullptr) return e;
    e["token_logprobs"] = logprob->logprob;
    e["top_logprobs"] = Json::object();
    for (const auto& [other, its] : logprob->top)
      e["top_logprobs"][utf8_lossy(token_bytes(tokenizer_, other))] = its;
    return e;
  }
  void settle(const std::vector<size_t>& offsets) {
    for (size_t i = 0; i < offsets.size(); ++i) {
      settled_.push_back(std::move(waiting_[i]));
      settled_.back()["text_offset"] = offsets[i];
    }
    waiting_.erase(waiting_.begin(),
                   waiting_.begin() + static_cast<std::ptrdiff_t>(offsets.size()));
  }

  const Tokenizer* tokenizer_;
  TextOffsets offsets_;
  std::vector<Json> waiting_, settled_;
};

// ---------------------------------------------------------------- answers

// Formats the choices of one prompt, whole or in pieces.
class ChoiceFormat {
 public:
  ChoiceFormat(const Service& service, const CompletionRequest& c, size_t first)
      : service_(service), c_(c), first_(first) {
    for (int64_t i = 0; i < c.draw.n; ++i) texts_.emplace_back(service.tokenizer.get());
  }

  // Begins each choice with the text of the prompt.
  void echo(const EchoedPrompt& asked, const PreparedPrompt& prompted) {
    echo_ = asked.text;
    for (TextLogprobs& text : texts_) {
      for (size_t i = 0; i < prompted.prompt_logprobs.size(); ++i) {
        const auto& logprob = prompted.prompt_logprobs[i];
        text.add(asked.ids[i], logprob ? &*logprob : nullptr);
      }
      text.end(characters(echo_));
    }
  }
  bool has_echo(size_t i) const { return !echo_.empty() || texts_[i].any(); }
  Json echoed(size_t i) { return choice(i, echo_, {}, nullptr); }
  Json piece(const ReplyPiece& p) { return choice(p.choice, p.text, p.logprobs, nullptr); }
  Json last(size_t i, const ReplyResult& result) { return choice(i, "", {}, &result); }
  Json whole(size_t i, const ReplyResult& result) {
    return choice(i, echo_ + result.reply.text, result.logprobs, &result);
  }

 private:
  // Returns a choice. `result` is null if more pieces follow.
  Json choice(size_t i, const std::string& text, const std::vector<TokenLogprob>& logprobs,
              const ReplyResult* result) {
    Json j = {{"index", first_ + i}};
    if (c_.chat && c_.stream)
      j["delta"] = text.empty() && result != nullptr ? Json::object() : Json{{"content", text}};
    else if (c_.chat)
      j["message"] = {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
    else
      j["text"] = text;
    j["logprobs"] = logprobs_json(i, logprobs, result != nullptr);
    j["finish_reason"] = result == nullptr ? Json(nullptr) : Json(finish_reason(result->reply));
    if (result == nullptr) return j;
    j["state_id"] = result->node->id;
    j["state_digest"] = sha256_text(result->node->digests.id);
    return j;
  }
  Json logprobs_json(size_t i, const std::vector<TokenLogprob>& logprobs, bool over) {
    if (c_.draw.top_logprobs < 0) return nullptr;
    if (c_.chat) return chat_logprobs(service_, logprobs);
    for (const TokenLogprob& t : logprobs) texts_[i].add(t.id, &t);
    if (over) texts_[i].end();
    return texts_[i].take();
  }

  const Service& service_;
  const CompletionRequest& c_;
  size_t first_;
  std::string echo_;
  std::vector<TextLogprobs> texts_;  // one for each choice
};

// The token counts of an answer, over all its prompts and replies.
struct Total {
  Usage usage;
  size_t drawn = 0;

  void add(const PreparedPrompt& p, const std::vector<ReplyResult>& results) {
    if (usage.reason.empty()) usage.reason = p.usage.reason;
    usage.reused += p.usage.reused;
    usage.recomputed += p.usage.recomputed;
    usage.fresh += p.usage.fresh;
    for (const ReplyResult& r : results) drawn += r.reply.ids.size();
  }
  Json json() const { return usage_json(usage, drawn); }
};

Json whole(Service& service, const Caller& caller, const CompletionRequest& c) {
  Json j = c.head(service), choices = Json::array();
  Total total;
  std::string state;
  for (EchoedPrompt& asked : check(service, caller, c)) {
    PreparedPrompt p = std::exchange(asked.prompt, nullptr)(caller);
    ChoiceFormat format(service, c, choices.size());
    if (c.echo) format.echo(asked, p);
    const std::vector<ReplyResult> results = draw_replies(service, caller, p, c.draw, nullptr);
    for (size_t i = 0; i < results.size(); ++i) choices.push_back(format.whole(i, results[i]));
    if (state.empty()) state = results[0].node->id;
    j["now"] = p.exchange.session().chat().now;
    total.add(p, results);
  }
  j["choices"] = std::move(choices);
  j["usage"] = total.json();
  j["state_id"] = state;
  return j;
}

void stream(Service& service, const Caller& caller, const CompletionRequest& c,
            std::vector<EchoedPrompt>& all, Writer& writer) {
  const Json head = c.head(service);
  const auto send = [&](Json choice, const Json& usage = nullptr) {
    Json j = head;
    j["choices"] = choice.is_null() ? Json::array() : Json::array({std::move(choice)});
    if (c.include_usage) j["usage"] = usage;
    return writer.event(j);
  };
  Total total;
  for (size_t k = 0; k < all.size(); ++k) {
    PreparedPrompt p = std::exchange(all[k].prompt, nullptr)(caller);
    ChoiceFormat format(service, c, k * static_cast<size_t>(c.draw.n));
    if (c.echo) format.echo(all[k], p);
    for (size_t i = 0; i < static_cast<size_t>(c.draw.n); ++i) {
      if (c.chat)
        send({{"index", i},
              {"delta", {{"role", "assistant"}, {"content", ""}}},
              {"logprobs", nullptr},
              {"finish_reason", nullptr}});
      else if (format.has_echo(i))
        send(format.echoed(i));
    }
    const auto sink = [&](const ReplyPiece& piece) {
      if (piece.text.empty() && piece.logprobs.empty()) return writer.good();
      return send(format.piece(piece));
    };
    const std::vector<ReplyResult> results = draw_replies(service, caller, p, c.draw, sink);
    for (size_t i = 0; i < results.size(); ++i) send(format.last(i, results[i]));
    total.add(p, results);
  }
  if (c.include_usage) send(nullptr, total.json());
  writer.write("data: [DONE]\n\n");
}

Response answer(Service& service, const Request& request, CompletionRequest c) {
  c.id = (c.chat ? "chatcmpl-" : "cmpl-") + random_name();
  c.draw.settle(service);
  if (!c.stream)
    return answer_at_once(service, request,
                          [&](const Caller& caller) { return whole(service, caller, c); });
  return stream_events(service, request, [&service, c](const Caller& caller) -> StreamBody {
    const auto all = std::make_shared<std::vector<EchoedPrompt>>(check(service, caller, c));
    return [&service, c, all](const Caller& talking, Writer& writer) {
      stream(service, talking, c, *all, writer);
    };
  });
}

}  // namespace

Endpoint chat_completions() { return endpoint(chat_completion_fields(), answer); }

Endpoint completions() {
  return endpoint<CompletionRequest>(
      completion_fields(), [](Service& service, const Request& request, CompletionRequest c) {
        c.chat = false;
        return answer(service, request, std::move(c));
      });
}

}  // namespace stet::serve
