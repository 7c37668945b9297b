// Tokenization and detokenization, without a state.
#include <fmt/format.h>

#include <iterator>

#include "stet/api.h"
#include "stet/base/error.hpp"
#include "tools/serve/routes.hpp"

namespace stet::serve {

namespace {

// Maximum bytes of a text to tokenize.
constexpr size_t kMostText = size_t{1} << 20;

// Builds the text directly: values of a JSON library take ten times as much memory.
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

struct TokenizeRequest {
  std::string text;
  bool add_special = true, parse_special = true;
};

struct DetokenizeRequest {
  std::vector<int32_t> ids;
  bool skip_special = false;
};

struct TemplateRequest {
  std::vector<Message> messages;
  ChatOptions chat;
};

Response answer_tokens(Service& service, const Request& request, TokenizeRequest asked) {
  const Tokenizer& t = service.need_tokenizer();
  if (asked.text.size() > kMostText)
    refuse("/text", fmt::format("at most {} bytes", kMostText), std::to_string(asked.text.size()));
  return respond_at_once(service, request, [&](const Caller& caller) {
    const TokenizeTurn turn(service, caller, asked.text.size());
    const auto bos = asked.add_special ? Tokenizer::Bos::automatic : Tokenizer::Bos::off;
    Response r;
    r.body = tokens_json(t, t.encode(asked.text, bos, asked.parse_special));
    if (caller.cancelled()) throw Cancelled();
    return r;
  });
}

Response answer_text(Service& service, const Request& request, DetokenizeRequest asked) {
  return answer_at_once(service, request, [&](const Caller&) {
    return Json{{"text", service.need_tokenizer().decode(asked.ids, asked.skip_special)}};
  });
}

Response answer_template(Service& service, const Request& request, TemplateRequest asked) {
  return answer_at_once(service, request, [&](const Caller& caller) {
    const Rendered rendered = render_prompt(service, caller, nullptr, asked.messages, asked.chat);
    return Json{{"prompt", rendered.text}, {"tokens", rendered.ids}, {"now", rendered.now}};
  });
}

}  // namespace

Endpoint tokenize() {
  return endpoint(BodyFields<TokenizeRequest>()
                      .required("text", "string",
                                [](TokenizeRequest& asked, const Field& f, const BodyContext&) {
                                  asked.text = f.required_text();
                                })
                      .boolean("add_special", &TokenizeRequest::add_special)
                      .boolean("parse_special", &TokenizeRequest::parse_special),
                  answer_tokens);
}

Endpoint detokenize() {
  return endpoint(
      BodyFields<DetokenizeRequest>()
          .required("tokens", "array",
                    [](DetokenizeRequest& asked, const Field& f, const BodyContext& context) {
                      const auto ids = f.ids(context.service.need_tokenizer().size());
                      if (!ids)
                        refuse(f.pointer(), "an array of token ids", "nothing", "missing_field");
                      asked.ids = *ids;
                    })
          .boolean("skip_special", &DetokenizeRequest::skip_special),
      answer_text);
}

Endpoint apply_template() {
  return endpoint(BodyFields<TemplateRequest>()
                      .required("messages", "array",
                                [](TemplateRequest& asked, const Field& f, const BodyContext&) {
                                  asked.messages = read_messages(f);
                                })
                      .part(&TemplateRequest::chat, chat_fields()),
                  answer_template);
}

}  // namespace stet::serve
