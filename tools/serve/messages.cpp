// Messages of a request, and tokens as answers show them.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "stet/base/error.hpp"
#include "stet/text/utf8.hpp"
#include "tools/serve/service.hpp"

namespace stet::serve {

std::string read_content(const Json& content, const std::string& pointer) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array())
    refuse(pointer, "a string, or a list of text parts", printable(tool::dump(content), 60));
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    Fields part(content[i], fmt::format("{}/{}", pointer, i));
    const std::string type = part.required_text("type");
    if (type != "text" && type != "input_text" && type != "output_text")
      unsupported(part.at("type"), type, "send parts of text", "unsupported_content");
    text += part.required_text("text");
    part.neutral("citations", {});
    part.unused({"annotations", "logprobs", "cache_control"});
    part.finish();
  }
  return text;
}

namespace {

constexpr char kNoTools[] = "it has no tools; leave the message out";

// What histories of other servers hold beside messages.
void refuse_other_items(Fields& f) {
  if (const auto type = f.text("type"); type && !type->empty() && *type != "message")
    unsupported(f.at("type"), *type, "send messages", "unsupported_content");
  if (const auto role = f.text("role"); role && (*role == "tool" || *role == "function"))
    unsupported(f.at("role"), "role " + *role, kNoTools, "unsupported_role");
  f.neutral("tool_calls", {}, kNoTools);
  f.neutral("function_call", {}, kNoTools);
}

Message read_message(const Json& json, const std::string& pointer) {
  Fields f(json, pointer);
  refuse_other_items(f);
  Message m;
  m.role = f.required_text("role");
  if (m.role == "developer") m.role = "system";
  if (m.role != "system" && m.role != "user" && m.role != "assistant")
    refuse(f.at("role"), "system, developer, user or assistant", printable(m.role, 60),
           "unsupported_role");
  const Json* content = f.find("content");
  if (content != nullptr)
    m.content = read_content(*content, f.at("content"));
  else if (m.role != "assistant")  // a reply may have been empty
    refuse(f.at("content"), "a string, or a list of text parts", "nothing", "missing_field");
  for (const char* name : {"name", "refusal", "audio", "reasoning_content", "reasoning"})
    f.neutral(name, {});
  f.unused({"id", "status", "phase", "annotations"});
  f.finish();
  return m;
}

}  // namespace

std::vector<Message> read_messages(Fields& fields, const std::string& name) {
  const Json* list = fields.find(name);
  const std::string pointer = fields.at(name);
  if (list == nullptr || !list->is_array() || list->empty())
    refuse(pointer, "a list of at least one message",
           list == nullptr ? "nothing" : printable(tool::dump(*list), 60));
  if (list->size() > 4096) refuse(pointer, "at most 4096 messages", std::to_string(list->size()));
  std::vector<Message> messages;
  for (size_t i = 0; i < list->size(); ++i)
    messages.push_back(read_message((*list)[i], fmt::format("{}/{}", pointer, i)));
  return messages;
}

std::string token_bytes(const Tokenizer* tokenizer, int32_t id) {
  // A model may have more rows, or no tokenizer at all.
  return tokenizer != nullptr && id < tokenizer->size() ? tokenizer->bytes(id) : "";
}

Json bytes_json(const std::string& bytes) {
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return list;
}

std::vector<std::pair<int32_t, double>> top_candidates(std::span<const float> logits, size_t n) {
  if (n == 0) return {};
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  n = std::min(n, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n), ids.end(),
                    [&](int32_t a, int32_t b) {
                      const float x = logits[static_cast<size_t>(a)],
                                  y = logits[static_cast<size_t>(b)];
                      return x > y || (x == y && a < b);
                    });
  std::vector<std::pair<int32_t, double>> top;
  for (size_t i = 0; i < n; ++i) top.emplace_back(ids[i], log_probability(logits, ids[i]));
  return top;
}

Json logprob_json(const Tokenizer* tokenizer, const TokenLogprob& token) {
  const auto entry = [&](int32_t id, double logprob) {
    const std::string bytes = token_bytes(tokenizer, id);
    return Json{{"token", utf8_lossy(bytes)}, {"logprob", logprob}, {"bytes", bytes_json(bytes)}};
  };
  Json j = entry(token.id, token.logprob);
  j["top_logprobs"] = Json::array();
  for (const auto& [id, logprob] : token.top) j["top_logprobs"].push_back(entry(id, logprob));
  return j;
}

}  // namespace stet::serve
