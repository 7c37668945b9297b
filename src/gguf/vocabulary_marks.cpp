#include "src/gguf/vocabulary_marks.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "stet/base/error.hpp"
#include "stet/text/jinja.hpp"

namespace stet {
namespace {

using jinja::Value;

constexpr const char* kTokenizerKeys = "tokenizer.ggml.";

// Tokens with which published templates end a turn. Those of the first line are also searched in
// the source of templates that cannot be rendered.
constexpr const char* kTurnEnds[] = {"<end_of_turn>",
                                     "<|eot_id|>",
                                     "<|im_end|>",
                                     "<|end|>",
                                     "<turn|>",
                                     "<|return|>",
                                     "<|end_of_text|>",
                                     "<|endoftext|>",
                                     "<end_of_utterance>",
                                     "[EOT]",
                                     "<EOT>",
                                     "</s>",
                                     "<｜end▁of▁sentence｜>"};
constexpr size_t kLookedForInSource = 4;

bool is_sentencepiece(const Gguf& keys) {
  return keys.text("tokenizer.ggml.model").value_or("") == "llama";
}

int64_t find_token(const Gguf& keys, const std::string& text, int64_t vocab_size) {
  const std::vector<std::string>* const tokens = keys.texts("tokenizer.ggml.tokens");
  if (tokens == nullptr) return -1;
  const auto found = std::ranges::find(*tokens, text);
  const int64_t id = found - tokens->begin();
  return found == tokens->end() || id >= vocab_size ? -1 : id;
}

// Returns what the template writes after a reply that is the last message, or nothing if it cannot
// be rendered.
std::optional<std::string> text_after_reply(const std::string& source, const std::string& bos,
                                            const std::string& eos) {
  const std::string reply = "stet-looks-behind-this";
  const auto message = [](const char* role, const std::string& content) {
    return Value::dict({{"role", Value::string(role)}, {"content", Value::string(content)}});
  };
  try {
    const std::string text =
        jinja::Program::parse(source, "chat_template")
            .render({{"messages", Value::list({message("user", "a"), message("assistant", reply)})},
                     {"add_generation_prompt", Value::boolean(false)},
                     {"tools", Value()},
                     {"documents", Value()},
                     {"bos_token", Value::string(bos)},
                     {"eos_token", Value::string(eos)}})
            .bytes;
    const size_t at = text.rfind(reply);
    if (at == std::string::npos) return std::nullopt;
    const size_t end = text.find_first_not_of(" \t\r\n", at + reply.size());
    return end == std::string::npos ? "" : text.substr(end);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string piece_of(const Gguf& keys, std::optional<int64_t> id) {
  const std::vector<std::string>* const tokens = keys.texts("tokenizer.ggml.tokens");
  const bool named =
      id && *id >= 0 && tokens != nullptr && *id < static_cast<int64_t>(tokens->size());
  return named ? (*tokens)[static_cast<size_t>(*id)] : "";
}

// Returns the token with which the file's template ends a turn.
std::optional<GgufStop> turn_end(const Gguf& keys, int64_t vocab_size) {
  const auto source = keys.text("tokenizer.chat_template");
  if (!source) return std::nullopt;
  const auto behind =
      text_after_reply(*source, piece_of(keys, gguf_special_id(keys, "bos_token_id", vocab_size)),
                       piece_of(keys, gguf_special_id(keys, "eos_token_id", vocab_size)));
  for (size_t i = 0; i < std::size(kTurnEnds); ++i) {
    const std::string text = kTurnEnds[i];
    const bool ends = behind ? behind->starts_with(text)
                             : i < kLookedForInSource && source->find(text) != std::string::npos;
    const int64_t id = ends ? find_token(keys, text, vocab_size) : -1;
    if (id >= 0) return GgufStop{id, "tokenizer.chat_template, which ends a turn with " + text};
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> gguf_special_id(const Gguf& keys, const std::string& name,
                                       int64_t vocab_size) {
  const std::string key = kTokenizerKeys + name;
  std::optional<int64_t> id;
  if (keys.has(key)) {
    id = keys.integer(key, INT64_MIN, INT64_MAX);
  } else if (is_sentencepiece(keys)) {
    const int64_t by_habit = name == "unknown_token_id" ? 0
                             : name == "bos_token_id"   ? 1
                             : name == "eos_token_id"   ? 2
                                                        : -1;
    const std::string piece = piece_of(keys, by_habit);
    if (by_habit >= 0 && (piece == "<unk>" || piece == "<s>" || piece == "</s>")) id = by_habit;
  }
  return id && *id >= 0 && *id < vocab_size ? id : std::nullopt;
}

std::vector<GgufStop> gguf_stops(const Gguf& keys, int64_t vocab_size) {
  std::vector<GgufStop> stops;
  const auto add = [&](int64_t id, const std::string& from) {
    const bool valid = id >= 0 && id < vocab_size;
    if (valid && std::ranges::find(stops, id, &GgufStop::id) == stops.end())
      stops.push_back({id, from});
  };
  for (const char* name : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
    if (const auto id = gguf_special_id(keys, name, vocab_size))
      add(*id, kTokenizerKeys + std::string(name));
  }
  const std::string list = kTokenizerKeys + std::string("eos_token_ids");
  if (const std::vector<double>* ids = keys.has(list) ? keys.numbers(list) : nullptr) {
    for (const double id : *ids) add(static_cast<int64_t>(std::clamp(id, -1.0, 1e15)), list);
  }
  if (keys.has(list) || gguf_special_id(keys, "eot_token_id", vocab_size)) return stops;
  if (const auto end = turn_end(keys, vocab_size)) add(end->id, end->from);
  return stops;
}

GgufAddsBos gguf_adds_bos(const Gguf& keys, const VocabularyRules* rules) {
  const std::string key = "tokenizer.ggml.add_bos_token",
                    model = keys.text("tokenizer.ggml.model").value_or("");
  // llama.cpp ignores the key for this model, since the first files had it wrong.
  if (model == "gemma4") return {true, "tokenizer.ggml.model gemma4"};
  if (const auto says = keys.boolean(key)) return {*says, key};
  if (is_sentencepiece(keys)) return {true, "tokenizer.ggml.model llama"};
  if (rules != nullptr) return {rules->adds_bos, std::string("tokenizer.ggml.pre ") + rules->name};
  return {false, "no key of tokenizer.ggml"};
}

nlohmann::ordered_json gguf_ids_config(const Gguf& keys, int64_t vocab_size) {
  using Json = nlohmann::ordered_json;
  Json g = Json::object();
  if (const auto bos = gguf_special_id(keys, "bos_token_id", vocab_size)) g["bos_token_id"] = *bos;
  Json ids = Json::array(), from = Json::array();
  for (const GgufStop& stop : gguf_stops(keys, vocab_size)) {
    ids.push_back(stop.id);
    from.push_back(stop.from);
  }
  if (ids.empty()) return g;
  g["eos_token_id"] = ids;
  g["stet"] = {{"eos_token_id", from}};
  return g;
}

}  // namespace stet
