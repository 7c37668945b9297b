#include "src/gguf/vocabulary.hpp"
#include "src/gguf/write.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "stet/base/bytes.hpp"
#include "stet/base/error.hpp"

namespace stet {
namespace {

using Json = nlohmann::ordered_json;
using Files = std::vector<std::pair<std::string, std::string>>;

constexpr double kControl = 3, kUserDefined = 4, kUnused = 5;  // of tokenizer.ggml.token_type

struct Vocabulary {
  const std::vector<std::string>& tokens;
  std::vector<double> types, scores;

  bool special(size_t i) const { return types[i] == kControl || types[i] == kUserDefined; }
  // What converters put where the vocabulary has no token, so that there is one for each row.
  bool filler(size_t i) const {
    return types[i] == kUnused && tokens[i] == fmt::format("[PAD{}]", i);
  }
};

Vocabulary read(const Gguf& keys, const std::vector<std::string>& tokens, int64_t vocab_size) {
  if (tokens.size() > static_cast<size_t>(vocab_size))
    keys.fail("tokenizer.ggml.tokens", "at most " + std::to_string(vocab_size),
              std::to_string(tokens.size()));
  Vocabulary v{tokens, std::vector<double>(tokens.size(), 1), std::vector<double>(tokens.size())};
  for (const auto& [key, to] : {std::pair("tokenizer.ggml.token_type", &v.types),
                                std::pair("tokenizer.ggml.scores", &v.scores)}) {
    const std::vector<double>* const found = keys.numbers(key);
    if (found == nullptr) continue;
    if (found->size() != tokens.size())
      keys.fail(key, std::to_string(tokens.size()) + " values", std::to_string(found->size()));
    *to = *found;
  }
  for (const double type : v.types) {
    if (!(type >= 1 && type <= 6) || type != static_cast<int>(type))
      keys.fail("tokenizer.ggml.token_type", "types in 1..6", fmt::format("{}", type));
  }
  for (const double score : v.scores) {
    if (!(score >= -1e30 && score <= 1e30))
      keys.fail("tokenizer.ggml.scores", "finite numbers", fmt::format("{}", score));
  }
  return v;
}

// The patterns of llama.cpp's list of pre-tokenizers, as the models' tokenizer.json has them.
struct Pattern {
  const char *name, *regex;
  bool ignore_merges;
  bool digits = false;  // each is a word, before the pattern is looked for
};
constexpr const char* kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr Pattern kPatterns[] = {{"gpt-2", kGpt2, false},        {"olmo", kGpt2, false},
                                 {"refact", kGpt2, false, true}, {"starcoder", kGpt2, false, true},
                                 {"smollm", kGpt2, false, true}, {"dbrx", kLlama3, false},
                                 {"llama-bpe", kLlama3, true},   {"llama-v3", kLlama3, true},
                                 {"llama3", kLlama3, true},      {"smaug-bpe", kLlama3, true},
                                 {"qwen2", kQwen2, false},       {"gpt-4o", kGpt4o, false}};

const Pattern& pattern_of(const Gguf& keys) {
  const std::string name = keys.text("tokenizer.ggml.pre").value_or("default");
  std::string known;
  for (const Pattern& p : kPatterns) {
    if (name == p.name) return p;
    known += (known.empty() ? "" : ", ") + std::string(p.name);
  }
  throw Error(ErrorKind::unsupported, keys.path(), "tokenizer.ggml.pre", "one of " + known,
              printable(name, 60));
}

// What tokenizer.json has in place of a pattern of ours.
Json pre_tokenizer_of(const Pattern& pattern) {
  Json steps = Json::array();
  if (pattern.digits) steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
  steps.push_back({{"type", "Split"},
                   {"pattern", {{"Regex", pattern.regex}}},
                   {"behavior", "Isolated"},
                   {"invert", false}});
  steps.push_back({{"type", "ByteLevel"},
                   {"add_prefix_space", false},
                   {"trim_offsets", true},
                   {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

Json added_tokens(const Vocabulary& v) {
  Json added = Json::array();
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    if (!v.special(i)) continue;
    added.push_back({{"id", i},
                     {"content", v.tokens[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", v.types[i] == kControl}});
  }
  return added;
}

// The token of a key, where there is one.
std::string named(const Gguf& keys, const Vocabulary& v, const char* key) {
  const auto id = keys.integer(std::string("tokenizer.ggml.") + key, 0,
                               static_cast<int64_t>(v.tokens.size()) - 1);
  return id ? v.tokens[static_cast<size_t>(*id)] : "";
}

std::string bpe_json(const Gguf& keys, const Vocabulary& v, bool add_bos) {
  const Pattern& pattern = pattern_of(keys);
  const std::vector<std::string>* const merges = keys.texts("tokenizer.ggml.merges");
  if (merges == nullptr) keys.fail("tokenizer.ggml.merges", "an array of texts", "nothing");
  Json vocab = Json::object();
  std::vector<std::pair<std::string, size_t>> ids;
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    if (!v.special(i) && !v.filler(i)) ids.emplace_back(v.tokens[i], i);
  }
  vocab = Json(nlohmann::ordered_map<std::string, Json>(ids.begin(), ids.end()));
  Json j = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added_tokens(v)},
      {"normalizer", std::string(pattern.name) == "qwen2" ? Json{{"type", "NFC"}} : Json(nullptr)},
      {"pre_tokenizer", pre_tokenizer_of(pattern)},
      {"post_processor", nullptr},
      {"decoder",
       {{"type", "ByteLevel"},
        {"add_prefix_space", true},
        {"trim_offsets", true},
        {"use_regex", true}}},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"ignore_merges", pattern.ignore_merges},
        {"vocab", vocab},
        {"merges", *merges}}}};
  const std::string bos = named(keys, v, "bos_token_id");
  if (add_bos && !bos.empty()) {
    const auto id = *keys.integer("tokenizer.ggml.bos_token_id", 0, INT32_MAX);
    j["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single",
         {{{"SpecialToken", {{"id", bos}, {"type_id", 0}}}},
          {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
        {"pair",
         {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
          {{"Sequence", {{"id", "B"}, {"type_id", 1}}}}}},
        {"special_tokens", {{bos, {{"id", bos}, {"ids", {id}}, {"tokens", {bos}}}}}}};
  }
  return j.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// A sentencepiece model (sentencepiece_model.proto) in protocol buffers' wire format.
class Proto {
 public:
  void number(uint32_t field, uint64_t value) {
    varint(field << 3);
    varint(value);
  }
  void text(uint32_t field, std::string_view value) {
    varint(field << 3 | 2);
    varint(value.size());
    bytes_ += value;
  }
  void f32(uint32_t field, float value) {
    varint(field << 3 | 5);
    ByteWriter w;
    w.f32(value);
    bytes_.append(reinterpret_cast<const char*>(w.data().data()), 4);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void varint(uint64_t value) {
    for (; value >= 128; value >>= 7) bytes_ += static_cast<char>(value | 128);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

std::string sentencepiece_model(const Gguf& keys, const Vocabulary& v) {
  Proto model;
  size_t count = v.tokens.size();
  while (count > 0 && v.filler(count - 1)) --count;
  for (size_t i = 0; i < count; ++i) {
    Proto piece;
    piece.text(1, v.tokens[i]);
    piece.f32(2, static_cast<float>(v.scores[i]));
    piece.number(3, static_cast<uint64_t>(v.types[i]));
    model.text(1, piece.bytes());
  }
  const auto id = [&](const char* name, int64_t fallback) {
    return static_cast<uint64_t>(
        keys.integer(std::string("tokenizer.ggml.") + name, 0, INT32_MAX).value_or(fallback));
  };
  Proto trainer;
  trainer.number(3, 2);   // model_type: BPE
  trainer.number(35, 1);  // byte_fallback
  trainer.number(40, id("unknown_token_id", 0));
  trainer.number(41, id("bos_token_id", 1));
  trainer.number(42, id("eos_token_id", 2));
  model.text(2, trainer.bytes());
  Proto normalizer;
  normalizer.text(1, "identity");
  normalizer.number(3, keys.boolean("tokenizer.ggml.add_space_prefix").value_or(true) ? 1 : 0);
  normalizer.number(4, 0);  // remove_extra_whitespaces
  normalizer.number(5, 1);  // escape_whitespaces
  model.text(3, normalizer.bytes());
  return model.bytes();
}

std::string tokenizer_config(const Gguf& keys, const Vocabulary& v, bool add_bos) {
  Json j = {{"add_bos_token", add_bos}, {"add_eos_token", false}};
  for (const auto& [name, key] :
       {std::pair("bos_token", "bos_token_id"), std::pair("eos_token", "eos_token_id"),
        std::pair("unk_token", "unknown_token_id"), std::pair("pad_token", "padding_token_id")}) {
    if (const std::string token = named(keys, v, key); !token.empty()) j[name] = token;
  }
  if (const auto text = keys.text("tokenizer.chat_template")) j["chat_template"] = *text;
  return j.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

// The forms in which tokenizer.json asks for the same: a split by a pattern, or by the one that
// ByteLevel has built in.
std::optional<std::string> pre_tokenizer_name(const nlohmann::json& tokenizer) {
  const auto none = nlohmann::json();
  nlohmann::json before = tokenizer.value("pre_tokenizer", none);
  if (before.value("type", "") == "ByteLevel")
    before = {{"type", "Sequence"}, {"pretokenizers", nlohmann::json::array({before})}};
  if (before.value("type", "") != "Sequence" || !before.contains("pretokenizers"))
    return std::nullopt;
  nlohmann::json& steps = before["pretokenizers"];
  if (!steps.is_array() || steps.empty() || steps.back().value("type", "") != "ByteLevel" ||
      steps.back().value("add_prefix_space", true))
    return std::nullopt;
  std::vector<std::string> shape;
  for (const auto& step : steps) {
    const std::string type = step.value("type", "");
    if (type == "Digits" && step.value("individual_digits", false))
      shape.push_back("digits");
    else if (type == "Split" && step.value("behavior", "") == "Isolated" &&
             !step.value("invert", false))
      shape.push_back(step.value("pattern", none).value("Regex", ""));
    else if (type == "ByteLevel" && &step == &steps.back())
      shape.insert(shape.end(), step.value("use_regex", true), std::string(kGpt2));
    else
      return std::nullopt;
  }
  const bool ignores = tokenizer.value("model", none).value("ignore_merges", false);
  for (const Pattern& p : kPatterns) {
    std::vector<std::string> expected(p.digits ? 1 : 0, "digits");
    expected.push_back(p.regex);
    if (shape == expected && ignores == p.ignore_merges) return p.name;
  }
  return std::nullopt;
}

std::vector<std::pair<std::string, std::string>> vocabulary_files(const Gguf& keys,
                                                                  int64_t vocab_size) {
  const std::vector<std::string>* const tokens = keys.texts("tokenizer.ggml.tokens");
  if (tokens == nullptr) return {};
  const std::string model = keys.text("tokenizer.ggml.model").value_or("");
  const Vocabulary v = read(keys, *tokens, vocab_size);
  const bool spm = model == "llama",
             add_bos = keys.boolean("tokenizer.ggml.add_bos_token").value_or(spm);
  Files files = {{"tokenizer_config.json", tokenizer_config(keys, v, add_bos)}};
  if (const auto published = keys.text("tokenizer.huggingface.json"))
    files.emplace_back("tokenizer.json", *published);
  else if (spm)
    files.emplace_back("tokenizer.model", sentencepiece_model(keys, v));
  else if (model == "gpt2")
    files.emplace_back("tokenizer.json", bpe_json(keys, v, add_bos));
  else
    throw Error(ErrorKind::unsupported, keys.path(), "tokenizer.ggml.model", "llama or gpt2",
                printable(model, 40));
  return files;
}

}  // namespace stet
