#include "src/gguf/vocabulary.hpp"
#include "src/gguf/vocabulary_marks.hpp"
#include "src/gguf/vocabulary_rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/text/tokenizer_config.hpp"
#include "stet/base/bytes.hpp"
#include "stet/base/error.hpp"
#include "stet/checkpoint/gguf.hpp"

namespace stet {
namespace {

using Json = nlohmann::ordered_json;
using Files = std::vector<std::pair<std::string, std::string>>;

constexpr double kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4,
                 kUnused = 5;  // values of tokenizer.ggml.token_type

struct GgufVocabulary {
  std::vector<std::string> tokens;
  std::vector<double> types, scores;

  bool special(size_t i) const { return types[i] == kControl || types[i] == kUserDefined; }
  // Returns whether the token is a placeholder that converters add where the vocabulary has no
  // token for a row.
  bool filler(size_t i) const {
    return types[i] == kUnused && tokens[i] == fmt::format("[PAD{}]", i);
  }
};

GgufVocabulary read(const Gguf& keys, const std::vector<std::string>& tokens, int64_t vocab_size) {
  if (tokens.size() > static_cast<size_t>(vocab_size))
    keys.fail("tokenizer.ggml.tokens", "at most " + std::to_string(vocab_size),
              std::to_string(tokens.size()));
  GgufVocabulary v{tokens, std::vector<double>(tokens.size(), kNormal),
                   std::vector<double>(tokens.size())};
  for (const auto& [key, to] : {std::pair("tokenizer.ggml.token_type", &v.types),
                                std::pair("tokenizer.ggml.scores", &v.scores)}) {
    const std::vector<double>* const found = keys.numbers(key);
    if (found == nullptr) continue;
    if (found->size() != tokens.size())
      keys.fail(key, std::to_string(tokens.size()) + " values", std::to_string(found->size()));
    *to = *found;
  }
  for (double& type : v.types) {
    if (!(type >= 0 && type <= 6) || type != static_cast<int>(type))
      keys.fail("tokenizer.ggml.token_type", "types in 0..6", fmt::format("{}", type));
    if (type == 0) type = kNormal;  // "undefined"
  }
  for (const double score : v.scores) {
    if (!(score >= -1e30 && score <= 1e30))
      keys.fail("tokenizer.ggml.scores", "finite numbers", fmt::format("{}", score));
  }
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    if (v.tokens[i].empty()) v.tokens[i] = fmt::format("[EMPTY_{}]", i);  // llama.cpp's name
  }
  return v;
}

// Returns the rules named by `given`, or else by the file. Without the key these are llama.cpp's
// default.
const VocabularyRules& rules_of(const Gguf& keys, const std::string& given) {
  const std::string name =
      given.empty() ? keys.text("tokenizer.ggml.pre").value_or("default") : given;
  if (const VocabularyRules* const rules = find_vocabulary_rules(name)) return *rules;
  std::string known;
  for (const std::string& one : pre_tokenizer_names()) known += (known.empty() ? "" : ", ") + one;
  throw Error(ErrorKind::unsupported, keys.path(), given.empty() ? "tokenizer.ggml.pre" : "--pre",
              "one of " + known + (given.empty() ? " (--pre NAME chooses one in its place)" : ""),
              printable(name, 60));
}

// Returns whether special tokens absorb the white space after them. Phi-3's do, but its files do
// not say so.
bool special_tokens_absorb_space(const Gguf& keys) {
  std::string name = keys.text("general.name").value_or("");
  for (char& c : name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return keys.text("tokenizer.ggml.model") == "llama" &&
         (keys.text("general.architecture") == "phi3" || name.find("phi-3") != std::string::npos ||
          name.find("phi3") != std::string::npos);
}

Json added_token(const GgufVocabulary& v, size_t i, bool takes_space) {
  return {{"content", v.tokens[i]}, {"single_word", false}, {"lstrip", false},
          {"rstrip", takes_space},  {"normalized", false},  {"special", v.types[i] == kControl}};
}

Json added_tokens(const GgufVocabulary& v) {
  Json added = Json::array();
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    if (!v.special(i)) continue;
    Json token = {{"id", i}};
    token.update(added_token(v, i, false));
    added.push_back(token);
  }
  return added;
}

Json spaced_tokens(const GgufVocabulary& v) {
  Json added = Json::object();
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    const std::string& text = v.tokens[i];
    const bool never = text == "<unk>" || text == "<s>" || text == "<|endoftext|>";
    if ((v.special(i) || text == "</s>") && !never)
      added[std::to_string(i)] = added_token(v, i, true);
  }
  return added;
}

// Returns the token that a key names, or "".
std::string named(const Gguf& keys, const GgufVocabulary& v, const char* key) {
  const auto id = gguf_special_id(keys, key, static_cast<int64_t>(v.tokens.size()));
  return id ? v.tokens[static_cast<size_t>(*id)] : "";
}

// Returns Gemma 4's rules: pieces of text as in sentencepiece, joined by merges.
Json text_rules(const Gguf& keys, const GgufVocabulary& v) {
  const std::string unknown = named(keys, v, "unknown_token_id");
  return {
      {"normalizer", {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}},
      {"pre_tokenizer",
       {{"type", "Split"},
        {"pattern", {{"String", " "}}},
        {"behavior", "MergedWithPrevious"},
        {"invert", false}}},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders",
         {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
          {{"type", "ByteFallback"}},
          {{"type", "Fuse"}}}}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", unknown.empty() ? Json(nullptr) : Json(unknown)},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"ignore_merges", false}}}};
}

Json byte_rules(const VocabularyRules& rules) {
  return {{"normalizer", rules.nfc ? Json{{"type", "NFC"}} : Json(nullptr)},
          {"pre_tokenizer", pre_tokenizer_json(rules)},
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
            {"ignore_merges", rules.ignore_merges}}}};
}

// `rules` is null for Gemma 4.
std::string bpe_json(const Gguf& keys, const GgufVocabulary& v, const VocabularyRules* rules,
                     bool add_bos) {
  const std::vector<std::string>* const merges = keys.texts("tokenizer.ggml.merges");
  if (merges == nullptr) keys.fail("tokenizer.ggml.merges", "an array of texts", "nothing");
  std::vector<std::pair<std::string, size_t>> ids;
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    // Merges of text may produce special tokens as well, such as Gemma's runs of newlines.
    const bool piece = rules == nullptr || !v.special(i);
    if (piece && !v.filler(i)) ids.emplace_back(v.tokens[i], i);
  }
  Json j = {{"version", "1.0"},
            {"truncation", nullptr},
            {"padding", nullptr},
            {"added_tokens", added_tokens(v)},
            {"post_processor", nullptr}};
  j.update(rules != nullptr ? byte_rules(*rules) : text_rules(keys, v));
  j["model"]["vocab"] = Json(nlohmann::ordered_map<std::string, Json>(ids.begin(), ids.end()));
  j["model"]["merges"] = *merges;
  const std::string bos = named(keys, v, "bos_token_id");
  if (add_bos && !bos.empty()) {
    const int64_t id =
        *gguf_special_id(keys, "bos_token_id", static_cast<int64_t>(v.tokens.size()));
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

// Encodes a sentencepiece model (sentencepiece_model.proto) in the wire format of protocol buffers.
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

// Returns the types with exactly one unknown piece. Some files give that piece another type, and
// some give its type to other pieces.
std::vector<double> types_with_one_unknown(const Gguf& keys, const GgufVocabulary& v) {
  std::vector<double> types = v.types;
  auto unknown = gguf_special_id(keys, "unknown_token_id", static_cast<int64_t>(types.size()));
  const auto typed = std::ranges::find(types, kUnknown);
  const bool named = unknown && types[static_cast<size_t>(*unknown)] == kUnknown;
  if (typed != types.end() && !named) unknown = typed - types.begin();
  std::ranges::replace(types, kUnknown, kUnused);
  if (unknown) types[static_cast<size_t>(*unknown)] = kUnknown;
  return types;
}

std::string sentencepiece_model(const Gguf& keys, const GgufVocabulary& v) {
  Proto model;
  const std::vector<double> types = types_with_one_unknown(keys, v);
  size_t count = v.tokens.size();
  while (count > 0 && v.filler(count - 1)) --count;
  for (size_t i = 0; i < count; ++i) {
    Proto piece;
    piece.text(1, v.tokens[i]);
    piece.f32(2, static_cast<float>(v.scores[i]));
    piece.number(3, static_cast<uint64_t>(types[i]));
    model.text(1, piece.bytes());
  }
  const auto id = [&](const char* name, int64_t fallback) {
    return static_cast<uint64_t>(
        gguf_special_id(keys, name, static_cast<int64_t>(count)).value_or(fallback));
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

// Returns the chat template, or a list of all if there are several.
Json templates_of(const Gguf& keys) {
  const std::string prefix = std::string(kGgufTemplate) + ".";
  const auto standard = keys.text(kGgufTemplate);
  Json list = Json::array();
  if (standard) list.push_back({{"name", "default"}, {"template", *standard}});
  for (const std::string& key : keys.keys(prefix))
    list.push_back({{"name", key.substr(prefix.size())}, {"template", *keys.text(key)}});
  return list.size() == 1 && standard ? Json(*standard) : list;
}

std::string tokenizer_config(const Gguf& keys, const GgufVocabulary& v, const GgufAddsBos& bos,
                             bool guessed) {
  Json j = {{"add_bos_token", bos.adds},
            {"add_eos_token", keys.boolean("tokenizer.ggml.add_eos_token").value_or(false)}};
  for (const auto& [name, key] :
       {std::pair("bos_token", "bos_token_id"), std::pair("eos_token", "eos_token_id"),
        std::pair("unk_token", "unknown_token_id"), std::pair("pad_token", "padding_token_id")}) {
    if (const std::string token = named(keys, v, key); !token.empty()) j[name] = token;
  }
  if (special_tokens_absorb_space(keys)) j["added_tokens_decoder"] = spaced_tokens(v);
  if (const Json templates = templates_of(keys); !templates.empty()) j["chat_template"] = templates;
  j["stet"] = {{"add_bos_token", bos.from}, {"chat_template", kGgufTemplate}};
  if (guessed)
    j["stet"]["warning"] =
        "the file names no pre-tokenizer (tokenizer.ggml.pre): text is split as llama.cpp's "
        "\"default\" does it, which few models were trained with; --pre NAME chooses another";
  return j.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> vocabulary_files(const Gguf& keys,
                                                                  int64_t vocab_size,
                                                                  const std::string& pre) {
  const std::vector<std::string>* const tokens = keys.texts("tokenizer.ggml.tokens");
  const std::string model = keys.text("tokenizer.ggml.model").value_or("");
  if (tokens == nullptr || model == "no_vocab" || model == "none") return {};
  const GgufVocabulary v = read(keys, *tokens, vocab_size);
  const auto published = keys.text("tokenizer.huggingface.json");
  const VocabularyRules* const rules =
      model == "gpt2" && !published ? &rules_of(keys, pre) : nullptr;
  if (!pre.empty() && rules == nullptr)
    throw Error(ErrorKind::argument, keys.path(), "--pre", "",
                published
                    ? std::string("the file has a tokenizer.json of its own, which needs no --pre")
                    : "vocabularies of the kind " + model + " have no pre-tokenizer to choose");
  const GgufAddsBos bos = gguf_adds_bos(keys, rules);
  const bool guessed = rules != nullptr && pre.empty() && !keys.has("tokenizer.ggml.pre");
  Files files = {{"tokenizer_config.json", tokenizer_config(keys, v, bos, guessed)}};
  if (published)
    files.emplace_back("tokenizer.json", *published);
  else if (model == "llama")
    files.emplace_back("tokenizer.model", sentencepiece_model(keys, v));
  else if (model == "gpt2" || model == "gemma4")
    files.emplace_back("tokenizer.json", bpe_json(keys, v, rules, bos.adds));
  else
    throw Error(ErrorKind::unsupported, keys.path(), "tokenizer.ggml.model",
                "llama, gpt2 or gemma4", printable(model, 40));
  return files;
}

}  // namespace stet
