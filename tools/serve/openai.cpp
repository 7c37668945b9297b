// OpenAI's interface: models, chat completions, completions.
#include <fmt/format.h>

#include "stet/base/error.hpp"
#include "tools/serve/interfaces.hpp"

namespace stet::serve {
namespace {

const char* finish_reason(const Reply& reply) {
  return reply.stop == StopReason::length ? "length" : "stop";
}

// What chat and text completions have in common.
struct Completion {
  DrawOptions draw;
  bool chat = true, stream = false, include_usage = false, echo_logprobs = false;
  std::vector<Message> messages;
  ChatState state;
  std::vector<int32_t> ids;
  NodePtr from;
  std::string id;

  Json head(const Service& service) const {
    const char* kind =
        chat ? (stream ? "chat.completion.chunk" : "chat.completion") : "text_completion";
    return {{"id", id},
            {"object", kind},
            {"created", now()},
            {"model", service.name},
            {"system_fingerprint", service.fingerprint}};
  }
};

void read_common(Service& service, const Request& request, Fields& f, Completion& c) {
  check_model(service, f);
  c.draw = read_draw(f, service.model->config().vocab_size);
  c.draw.n = f.integer("n", 1, 16).value_or(1);
  c.stream = f.boolean("stream").value_or(false);
  if (auto options = f.object("stream_options")) {
    c.include_usage = options->boolean("include_usage").value_or(false);
    options->neutral("include_obfuscation", {false, true});
    options->finish();
  }
  if (const auto from = f.text("resume_from"))
    c.from = service.states.find(request.client, *from, "/resume_from");
  f.unused({"user", "metadata", "safety_identifier", "prompt_cache_key"});
}

Completion read_chat_completion(Service& service, const Request& request, const Json& body) {
  Fields f(body, "");
  Completion c;
  read_common(service, request, f, c);
  c.messages = read_messages(f, "messages");
  c.state = read_chat(f);
  c.draw.max_tokens = f.integer("max_completion_tokens", 1, kMaxPositions);
  const auto older = f.integer("max_tokens", 1, kMaxPositions);
  if (!c.draw.max_tokens) c.draw.max_tokens = older;
  const bool logprobs = f.boolean("logprobs").value_or(false);
  const auto top = f.integer("top_logprobs", 0, 20);
  if (top && *top > 0 && !logprobs)
    refuse("/top_logprobs", "logprobs: true with it", std::to_string(*top));
  if (logprobs) c.draw.top_logprobs = static_cast<int>(top.value_or(0));
  f.neutral("tools", {Json::array()});
  f.neutral("tool_choice", {"none", "auto"});
  f.neutral("parallel_tool_calls", {true, false});
  f.neutral("functions", {Json::array()});
  f.neutral("function_call", {"none", "auto"});
  f.neutral("response_format", {{{"type", "text"}}});
  f.neutral("modalities", {{"text"}});
  f.neutral("store", {false});
  f.neutral("service_tier", {"auto", "default"});
  f.neutral("audio", {});
  f.neutral("prediction", {});
  f.neutral("reasoning_effort", {"none"});
  f.neutral("verbosity", {"medium"});
  f.neutral("web_search_options", {});
  f.finish();
  return c;
}

Completion read_completion(Service& service, const Request& request, const Json& body) {
  Fields f(body, "");
  Completion c;
  c.chat = false;
  read_common(service, request, f, c);
  const Json* prompt = f.find("prompt");
  if (prompt == nullptr) refuse("/prompt", "a string or token ids", "nothing", "missing_field");
  if (prompt->is_array()) {
    const Json* const one =
        prompt->empty() || prompt->front().is_number() ? prompt : &prompt->front();
    if (one != prompt && prompt->size() != 1)
      refuse("/prompt", "one text, or the token ids of one", fmt::format("{}", prompt->size()));
    if (one->is_string())
      c.ids = service.need_tokenizer().encode(
          one->get<std::string>(), c.from ? Tokenizer::Bos::off : Tokenizer::Bos::automatic);
    else
      c.ids = read_ids(*one, one == prompt ? "/prompt" : "/prompt/0",
                       service.model->config().vocab_size);
  } else {
    c.ids = service.need_tokenizer().encode(
        f.required_text("prompt"), c.from ? Tokenizer::Bos::off : Tokenizer::Bos::automatic);
  }
  c.draw.max_tokens = f.integer("max_tokens", 1, kMaxPositions).value_or(16);
  if (const auto top = f.integer("logprobs", 0, 20)) c.draw.top_logprobs = static_cast<int>(*top);
  f.neutral("echo", {false});
  f.neutral("suffix", {""});
  f.neutral("best_of", {1, c.draw.n});
  f.finish();
  return c;
}

Prompted prompt(Service& service, const Caller& caller, const Completion& c) {
  if (!c.from)
    return c.chat ? prompt_messages(service, caller, c.messages, c.state)
                  : prompt_ids(service, caller, c.ids);
  Prompted p = resume(service, caller, c.from);
  if (c.chat)
    say(service, caller, p, c.messages);
  else
    append_text(service, caller, p, c.ids);
  return p;
}

Json logprobs_json(const Service& service, const Completion& c,
                   const std::vector<TokenLogprob>& all) {
  if (c.draw.top_logprobs < 0) return nullptr;
  Json content = Json::array();
  for (const TokenLogprob& t : all) content.push_back(logprob_json(service.tokenizer.get(), t));
  if (c.chat) return {{"content", content}, {"refusal", nullptr}};
  Json j = {{"tokens", Json::array()},
            {"token_logprobs", Json::array()},
            {"top_logprobs", Json::array()},
            {"text_offset", Json::array()}};
  size_t offset = 0;
  for (const Json& t : content) {
    j["tokens"].push_back(t["token"]);
    j["token_logprobs"].push_back(t["logprob"]);
    Json top = Json::object();
    for (const Json& other : t["top_logprobs"])
      top[other["token"].get<std::string>()] = other["logprob"];
    j["top_logprobs"].push_back(top);
    j["text_offset"].push_back(offset);
    offset += t["token"].get_ref<const std::string&>().size();
  }
  return j;
}

// A choice with its state: whole, or (`reply` null) a piece of it.
Json choice_json(const Service& service, const Completion& c, size_t index, const std::string& text,
                 const std::vector<TokenLogprob>& logprobs, const ReplyResult* result) {
  Json j = {{"index", index}};
  if (c.chat && c.stream)
    j["delta"] = text.empty() && result != nullptr ? Json::object() : Json{{"content", text}};
  else if (c.chat)
    j["message"] = {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
  else
    j["text"] = text;
  j["logprobs"] = logprobs_json(service, c, logprobs);
  j["finish_reason"] = result == nullptr ? Json(nullptr) : Json(finish_reason(result->reply));
  if (result == nullptr) return j;
  j["state_id"] = result->node->id;
  j["state_digest"] = sha256_text(result->node->digests.id);
  return j;
}

Json usage_of(const Prompted& p, const std::vector<ReplyResult>& results) {
  size_t drawn = 0;
  for (const ReplyResult& r : results) drawn += r.reply.ids.size();
  return usage_json(p.usage, drawn);
}

Json whole(Service& service, const Caller& caller, const Completion& c) {
  Prompted p = prompt(service, caller, c);
  const std::vector<ReplyResult> results = draw_replies(service, caller, p, c.draw, nullptr);
  Json j = c.head(service);
  j["choices"] = Json::array();
  for (size_t i = 0; i < results.size(); ++i)
    j["choices"].push_back(
        choice_json(service, c, i, results[i].reply.text, results[i].logprobs, &results[i]));
  j["usage"] = usage_of(p, results);
  j["state_id"] = results[0].node->id;
  j["now"] = p.talk.session().chat().now;
  return j;
}

void stream(Service& service, const Caller& caller, const Completion& c, Writer& writer) {
  Prompted p = prompt(service, caller, c);
  Json head = c.head(service);
  const auto send = [&](Json choice, const Json& usage = nullptr) {
    Json j = head;
    j["choices"] = choice.is_null() ? Json::array() : Json::array({std::move(choice)});
    if (c.include_usage) j["usage"] = usage;
    return writer.event(j);
  };
  for (int64_t i = 0; c.chat && i < c.draw.n; ++i) {
    send({{"index", i},
          {"delta", {{"role", "assistant"}, {"content", ""}}},
          {"logprobs", nullptr},
          {"finish_reason", nullptr}});
  }
  const auto sink = [&](const ReplyPiece& piece) {
    if (piece.text.empty() && piece.logprobs.empty()) return writer.good();
    return send(choice_json(service, c, piece.choice, piece.text, piece.logprobs, nullptr));
  };
  const std::vector<ReplyResult> results = draw_replies(service, caller, p, c.draw, sink);
  for (size_t i = 0; i < results.size(); ++i) send(choice_json(service, c, i, "", {}, &results[i]));
  if (c.include_usage) send(nullptr, usage_of(p, results));
  writer.write("data: [DONE]\n\n");
}

Response answer(Service& service, const Request& request, Completion c) {
  c.id = service.states.handle(c.chat ? "chatcmpl-" : "cmpl-", request.client, request.body);
  if (c.chat && !c.from) check_messages(service, c.messages, c.state);
  if (!c.stream)
    return answer_at_once(service, request,
                          [&](const Caller& caller) { return whole(service, caller, c); });
  return stream_events(service, request, [&service, c](const Caller& caller, Writer& writer) {
    stream(service, caller, c, writer);
  });
}

Json model_json(const Service& service) {
  return {{"id", service.name},
          {"object", "model"},
          {"created", service.started},
          {"owned_by", "stet"},
          {"context_length", Session(service.model, service.session).capacity()},
          {"contract", contract_name(*service.model, service.session.compute.contract)},
          {"fingerprint", service.fingerprint}};
}

}  // namespace

Response models(Service& service, const Request&, const Parts&) {
  return json_response({{"object", "list"}, {"data", Json::array({model_json(service)})}});
}

Response model(Service& service, const Request&, const Parts& parts) {
  if (parts[0] != service.name)
    throw RequestError(
        404, "model_not_found",
        fmt::format("/id: expected {}, found {}", service.name, printable(parts[0], 60)), "/id");
  return json_response(model_json(service));
}

Response chat_completions(Service& service, const Request& request, const Parts&) {
  return answer(service, request, read_chat_completion(service, request, parse_body(request.body)));
}

Response completions(Service& service, const Request& request, const Parts&) {
  return answer(service, request, read_completion(service, request, parse_body(request.body)));
}

}  // namespace stet::serve
