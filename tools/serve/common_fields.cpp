// Fields shared by the bodies of several addresses.
#include <fmt/format.h>

#include <charconv>

#include "stet/base/error.hpp"
#include "tools/serve/body_fields.hpp"

namespace stet::serve {

// ---------------------------------------------------------------- messages

std::string read_content(const Json& content, const std::string& pointer) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array())
    refuse(pointer, "a string, or a list of text parts", printable(tool::dump(content), 60));
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    Fields part(content[i], fmt::format("{}/{}", pointer, i));
    const Field kind = part["type"];
    const std::string type = kind.required_text();
    if (type != "text" && type != "input_text" && type != "output_text")
      unsupported(kind.pointer(), type, "send parts of text", "unsupported_content");
    text += part["text"].required_text();
    part["citations"].neutral({});
    part.unused({"annotations", "logprobs", "cache_control"});
    part.finish();
  }
  return text;
}

namespace {

constexpr char kNoTools[] = "it has no tools; leave the message out";

// Refuses items other than messages, which histories of other servers may hold.
void refuse_other_items(Fields& f) {
  const Field kind = f["type"], speaker = f["role"];
  if (const auto type = kind.text(); type && !type->empty() && *type != "message")
    unsupported(kind.pointer(), *type, "send messages", "unsupported_content");
  if (const auto role = speaker.text(); role && (*role == "tool" || *role == "function"))
    unsupported(speaker.pointer(), "role " + *role, kNoTools, "unsupported_role");
  f["tool_calls"].neutral({}, kNoTools);
  f["function_call"].neutral({}, kNoTools);
}

}  // namespace

Message read_message(const Json& json, const std::string& pointer) {
  Fields f(json, pointer);
  refuse_other_items(f);
  Message m;
  const Field speaker = f["role"], content = f["content"];
  m.role = speaker.required_text();
  if (m.role == "developer") m.role = "system";
  if (m.role != "system" && m.role != "user" && m.role != "assistant")
    refuse(speaker.pointer(), "system, developer, user or assistant", printable(m.role, 60),
           "unsupported_role");
  if (content.value() != nullptr)
    m.content = read_content(*content.value(), content.pointer());
  else if (m.role != "assistant")  // a reply may be empty
    refuse(content.pointer(), "a string, or a list of text parts", "nothing", "missing_field");
  for (const char* name : {"name", "refusal", "audio", "reasoning_content", "reasoning"})
    f[name].neutral({});
  f.unused({"id", "status", "phase", "annotations"});
  f.finish();
  return m;
}

std::vector<Message> read_messages(const Field& field) {
  const Json* const list = field.value();
  const std::string& pointer = field.pointer();
  if (list == nullptr)
    refuse(pointer, "a list of at least one message", "nothing", "missing_field");
  if (!list->is_array() || list->empty())
    refuse(pointer, "a list of at least one message", printable(tool::dump(*list), 60));
  if (list->size() > 4096) refuse(pointer, "at most 4096 messages", std::to_string(list->size()));
  std::vector<Message> messages;
  for (size_t i = 0; i < list->size(); ++i)
    messages.push_back(read_message((*list)[i], fmt::format("{}/{}", pointer, i)));
  return messages;
}

// ---------------------------------------------------------------- model and sampling

std::string read_model(const Field& field, const BodyContext& context) {
  const Service& service = context.service;
  const std::string model = field.nonempty_text().value_or(service.name);
  if (!service.is_name(model))
    throw RequestError(
        404, "model_not_found",
        fmt::format("/model: this server runs {}, not {}", service.name, printable(model, 60)),
        "/model");
  return model;
}

NodePtr read_resume_from(const Field& field, const BodyContext& context) {
  const auto from = field.nonempty_text();
  if (!from) return nullptr;
  return context.service.states.find(context.request.client, *from, field.pointer());
}

namespace {

std::vector<TokenBias> read_logit_bias(Fields f, int64_t vocab_size) {
  std::vector<TokenBias> biases;
  for (const std::string& name : f.names()) {
    int32_t id = -1;
    std::from_chars(name.data(), name.data() + name.size(), id);
    if (id < 0 || id >= vocab_size || std::to_string(id) != name)
      refuse(f[name].pointer(), fmt::format("a token id in 0..{} as name", vocab_size - 1),
             printable(name, 60));
    if (const auto bias = f[name].number(-100, 100)) biases.push_back({id, *bias});
  }
  biases = logit_bias_of(std::move(biases));
  if (biases.size() > kMaxLogitBias)
    refuse(f.pointer(), fmt::format("at most {} tokens", kMaxLogitBias),
           std::to_string(biases.size()));
  return biases;
}

}  // namespace

void read_temperature(DrawOptions& draw, const Field& f, const BodyContext&) {
  constexpr double kLeast = 1e-30, kMost = 1e30;  // those of SamplingSettings
  draw.temperature = f.number(0, kMost);
  if (draw.temperature && *draw.temperature > 0 && *draw.temperature < kLeast)
    refuse(f.pointer(), fmt::format("0, or a number in {}..{}", kLeast, kMost),
           fmt::format("{}", *draw.temperature));
}

BodyFields<DrawOptions> draw_fields() {
  return BodyFields<DrawOptions>()
      .field("temperature", "number", read_temperature)
      .number("top_p", &DrawOptions::top_p, 0, 1)
      .integer("top_k", &DrawOptions::top_k, 0, INT32_MAX)
      .number("min_p", &DrawOptions::min_p, 0, 1)
      .number("typical_p", &DrawOptions::typical_p, 1e-9, 1)
      .number("repetition_penalty", &DrawOptions::repetition_penalty, 1e-30, 1e30)
      .integer("seed", &DrawOptions::seed, 0, INT64_MAX)
      .field("stop", "any",
             [](DrawOptions& draw, const Field& f, const BodyContext&) {
               if (f.value() != nullptr && *f.value() != "") draw.stop = f.texts(kMaxStopStrings);
             })
      .boolean("ignore_eos", &DrawOptions::ignore_eos)
      .number("frequency_penalty", &DrawOptions::frequency_penalty, -2, 2)
      .number("presence_penalty", &DrawOptions::presence_penalty, -2, 2)
      .field("logit_bias", "object",
             [](DrawOptions& draw, const Field& f, const BodyContext& context) {
               if (auto biases = f.object())
                 draw.logit_bias = read_logit_bias(*std::move(biases),
                                                   context.service.model->config().vocab_size);
             });
}

namespace {

// Files of states have room for these and for as much of other settings.
constexpr size_t kMostVariables = size_t{8} << 20;

}  // namespace

BodyFields<ChatOptions> chat_fields() {
  return BodyFields<ChatOptions>()
      .field("now", "integer",
             [](ChatOptions& chat, const Field& f, const BodyContext&) {
               chat.state.now = f.integer(0, INT64_C(1) << 40).value_or(0);
             })
      .field("template_variables", "object",
             [](ChatOptions& chat, const Field& f, const BodyContext&) {
               if (!f.object()) return;
               chat.state.variables = tool::dump(*f.value());
               if (chat.state.variables.size() > kMostVariables)
                 refuse(f.pointer(), fmt::format("at most {} bytes of JSON", kMostVariables),
                        std::to_string(chat.state.variables.size()));
             })
      .boolean("continue_final_message", &ChatOptions::continues);
}

}  // namespace stet::serve
