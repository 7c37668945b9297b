// Text and tokens of the model, without a state.
#include <fmt/format.h>

#include <iterator>

#include "stet/api.h"
#include "stet/base/error.hpp"
#include "tools/serve/routes.hpp"

namespace stet::serve {

namespace {

// Of text that is to become tokens for their own sake.
constexpr size_t kMostText = size_t{1} << 20;

// As text at once: values of a JSON library take ten times as much memory.
std::string tokens_json(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::string json =
      fmt::format("{{\"tokens\":[{}],\"count\":{},\"pieces\":[", fmt::join(ids, ","), ids.size());
  const auto to = std::back_inserter(json);
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string bytes = token_bytes(&tokenizer, ids[i]);
    fmt::format_to(to, "{}{{\"id\":{},\"bytes\":[", i == 0 ? "" : ",", ids[i]);
    for (size_t k = 0; k < bytes.size(); ++k)
      fmt::format_to(to, "{}{}", k == 0 ? "" : ",", static_cast<unsigned char>(bytes[k]));
    json += "]}";
  }
  return json += "]}\n";
}

}  // namespace

Response tokenize(Service& service, const Request& request, const Parts&) {
  const Json body = parse_body(request.body);
  Fields f(body, "");
  const std::string text = f.required_text("text");
  const bool bos = f.boolean("add_special").value_or(true),
             special = f.boolean("parse_special").value_or(true);
  f.finish();
  const Tokenizer& t = service.need_tokenizer();
  if (text.size() > kMostText)
    refuse("/text", fmt::format("at most {} bytes", kMostText), std::to_string(text.size()));
  return respond_at_once(service, request, [&](const Caller& caller) {
    const TokenizeTurn turn(service, caller, text.size());
    Response r;
    r.body = tokens_json(
        t, t.encode(text, bos ? Tokenizer::Bos::automatic : Tokenizer::Bos::off, special));
    if (caller.gone()) throw Cancelled();
    return r;
  });
}

Response detokenize(Service& service, const Request& request, const Parts&) {
  const Json body = parse_body(request.body);
  Fields f(body, "");
  const auto ids = f.ids("tokens", service.need_tokenizer().size());
  if (!ids) refuse("/tokens", "an array of token ids", "nothing", "missing_field");
  const bool skip = f.boolean("skip_special").value_or(false);
  f.finish();
  return answer_at_once(service, request, [&](const Caller&) {
    return Json{{"text", service.need_tokenizer().decode(*ids, skip)}};
  });
}

Response apply_template(Service& service, const Request& request, const Parts&) {
  const Json body = parse_body(request.body);
  Fields f(body, "");
  const std::vector<Message> messages = read_messages(f, "messages");
  const ChatAsked chat = read_chat(f);
  f.finish();
  return answer_at_once(service, request, [&](const Caller& caller) {
    const Rendered rendered = render_prompt(service, caller, nullptr, messages, chat);
    return Json{{"prompt", rendered.text}, {"tokens", rendered.ids}, {"now", rendered.now}};
  });
}

}  // namespace stet::serve
