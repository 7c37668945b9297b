// Writes a tokenizer as llama.cpp's keys.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "src/gguf/vocabulary.hpp"
#include "src/gguf/vocabulary_rules.hpp"
#include "src/gguf/write.hpp"
#include "src/text/sentencepiece.hpp"
#include "src/text/tokenizer_files.hpp"
#include "stet/base/error.hpp"
#include "stet/text/tokenizer.hpp"

namespace stet {
namespace {

using PlainJson = nlohmann::json;

// Values of tokenizer.ggml.token_type.
enum TokenType : int32_t {
  kTokenNormal = 1,
  kTokenUnknown = 2,
  kTokenControl = 3,
  kTokenUserDefined = 4,
  kTokenUnused = 5,
  kTokenByte = 6
};

struct Tokens {
  std::vector<std::string> texts;
  std::vector<int32_t> types;
  std::vector<float> scores;        // for sentencepiece
  std::vector<std::string> merges;  // for other vocabularies
  bool space_prefix = false;

  void set(size_t id, const std::string& text, int32_t type) {
    if (id >= texts.size()) {
      for (size_t i = texts.size(); i <= id; ++i) texts.push_back(fmt::format("[PAD{}]", i));
      types.resize(id + 1, kTokenUnused);
      scores.resize(id + 1);
    }
    texts[id] = text;
    types[id] = type;
  }
};

const std::string* file_named(const Tokenizer& tokenizer, std::string_view name) {
  for (const auto& [file, bytes] : tokenizer.files()) {
    if (file == name) return &bytes;
  }
  return nullptr;
}

[[noreturn]] void refuse(const std::string& field, const std::string& expected,
                         const std::string& found) {
  throw Error(ErrorKind::unsupported, "tokenizer", field, expected, found);
}

// Enters tokens added to the vocabulary, with the types that the tokenizer gives them.
void mark_added(const Tokenizer& tokenizer, const PlainJson& added, Tokens& tokens) {
  for (const PlainJson& token : added) {
    const auto id = token.at("id").get<size_t>();
    if (id > INT32_MAX) refuse("added_tokens", "ids of 32 bits", std::to_string(id));
    const bool special = tokenizer.is_special(static_cast<int32_t>(id));
    tokens.set(id, token.at("content").get<std::string>(),
               special ? kTokenControl : kTokenUserDefined);
  }
}

// Enters tokens listed beside the vocabulary file: added tokens, and pieces named as special.
void mark_config_tokens(const Tokenizer& tokenizer, Tokens& tokens) {
  const TokenizerConfig config = read_tokenizer_config(tokenizer.files(), "");
  PlainJson added = PlainJson::array();
  for (const auto* list : {&config.added, &config.listed}) {
    for (const auto& [field, token] : *list) {
      if (const auto id = tokenizer.find_id(token.text))
        added.push_back({{"id", *id}, {"content", token.text}});
    }
  }
  mark_added(tokenizer, added, tokens);
  for (size_t i = 0; i < tokens.types.size(); ++i) {
    if (tokens.types[i] == kTokenNormal && tokenizer.is_special(static_cast<int32_t>(i)))
      tokens.types[i] = kTokenControl;
  }
}

Tokens of_sentencepiece(const Tokenizer& tokenizer, const std::string& bytes) {
  const SentencePieceModel model = parse_sentencepiece_model(bytes, "tokenizer.model");
  if (model.model_type != 2) refuse("model_type", "BPE", "unigram");
  if (!model.character_map.empty()) refuse("precompiled_charsmap", "none", "one");
  if (model.remove_extra_whitespaces) refuse("remove_extra_whitespaces", "false", "true");
  Tokens tokens;
  tokens.space_prefix = model.add_dummy_prefix;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    tokens.set(i, model.pieces[i].text, static_cast<int32_t>(model.pieces[i].type));
    tokens.scores[i] = model.pieces[i].score;
  }
  mark_config_tokens(tokenizer, tokens);
  return tokens;
}

// Leaves out added tokens that have no row in the embeddings.
GgufLeftOut keep_rows(int64_t vocab_size, Tokens& tokens) {
  GgufLeftOut out;
  const auto rows = static_cast<size_t>(vocab_size);
  for (size_t id = rows; id < tokens.texts.size(); ++id) {
    const int32_t type = tokens.types[id];
    if (type != kTokenControl && type != kTokenUserDefined && type != kTokenUnused)
      refuse("tokens", "at most " + std::to_string(vocab_size),
             std::to_string(tokens.texts.size()));
    if (type != kTokenUnused) out.tokens.push_back(tokens.texts[id]);
  }
  tokens.texts.resize(std::min(rows, tokens.texts.size()));
  tokens.types.resize(tokens.texts.size());
  tokens.scores.resize(tokens.texts.size());
  return out;
}

std::string merge_text(const PlainJson& merge) {
  if (merge.is_string()) return merge.get<std::string>();
  return merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>();
}

// Sets scores for BPE with byte pieces, as sentencepiece has it: earlier merges score higher.
void take_scores(const PlainJson& model, Tokens& tokens) {
  std::unordered_map<std::string, float> rank;
  for (const PlainJson& merge : model.at("merges")) {
    std::string text = merge_text(merge);
    text.erase(text.find(' '), 1);
    rank.emplace(text, -static_cast<float>(rank.size() + 1));
  }
  const auto unknown = model.value("unk_token", PlainJson());
  for (size_t i = 0; i < tokens.texts.size(); ++i) {
    const std::string& text = tokens.texts[i];
    if (const auto found = rank.find(text); found != rank.end()) tokens.scores[i] = found->second;
    if (unknown.is_string() && text == unknown.get<std::string>()) tokens.types[i] = kTokenUnknown;
    if (tokens.types[i] == kTokenNormal && text.size() == 6 && text.starts_with("<0x"))
      tokens.types[i] = kTokenByte;
  }
}

// Returns whether the tokenizer puts a space first, by a Prepend or by a Metaspace.
bool adds_space_prefix(const PlainJson& tokenizer) {
  const std::string normalizer = tokenizer.value("normalizer", PlainJson()).dump(),
                    before = tokenizer.value("pre_tokenizer", PlainJson()).dump();
  return normalizer.find("\"Prepend\"") != std::string::npos ||
         before.find("\"prepend_scheme\":\"first\"") != std::string::npos ||
         before.find("\"prepend_scheme\":\"always\"") != std::string::npos ||
         before.find("\"add_prefix_space\":true") != std::string::npos;
}

Tokens of_json(const Tokenizer& tokenizer, const PlainJson& j) {
  Tokens tokens;
  for (const auto& [text, id] : j.at("model").at("vocab").items())
    tokens.set(id.get<size_t>(), text, kTokenNormal);
  const bool byte_fallback = j["model"].value("byte_fallback", false);
  if (byte_fallback) {
    take_scores(j["model"], tokens);
    tokens.space_prefix = adds_space_prefix(j);
  }
  if (j.contains("added_tokens")) mark_added(tokenizer, j["added_tokens"], tokens);
  mark_config_tokens(tokenizer, tokens);
  if (byte_fallback) {
    const auto unknown = j["model"].value("unk_token", PlainJson());
    for (size_t i = 0; unknown.is_string() && i < tokens.texts.size(); ++i) {
      if (tokens.texts[i] == unknown.get<std::string>()) tokens.types[i] = kTokenUnknown;
    }
    return tokens;
  }
  for (const PlainJson& merge : j["model"].at("merges")) tokens.merges.push_back(merge_text(merge));
  return tokens;
}

// Returns the tokens that end a reply. llama.cpp takes the first as end of text: the one that the
// tokenizer names, if it is among them.
std::vector<int32_t> end_tokens(const Tokenizer& tokenizer, const GenerationConfig& generation) {
  std::vector<int32_t> ends = generation.eos_ids;
  if (ends.empty() && tokenizer.eos()) ends.push_back(*tokenizer.eos());
  const auto named =
      tokenizer.eos() ? std::find(ends.begin(), ends.end(), *tokenizer.eos()) : ends.end();
  if (named != ends.end()) std::rotate(ends.begin(), named, named + 1);
  return ends;
}

void add_special(const Tokenizer& tokenizer, const GenerationConfig& generation, GgufKeys& keys) {
  const auto id = [&](const char* name, int32_t token) {
    keys.u32(std::string("tokenizer.ggml.") + name, static_cast<uint64_t>(token));
  };
  if (tokenizer.bos()) id("bos_token_id", *tokenizer.bos());
  const std::vector<int32_t> ends = end_tokens(tokenizer, generation);
  const char* const names[] = {"eos_token_id", "eot_token_id", "eom_token_id"};
  for (size_t i = 0; i < std::min(ends.size(), std::size(names)); ++i) id(names[i], ends[i]);
  if (ends.size() > std::size(names)) keys.i32s("tokenizer.ggml.eos_token_ids", ends);
  for (const auto& [name, text] : tokenizer.special_tokens()) {
    const auto token = tokenizer.find_id(text);
    if (name == "unk_token" && token) id("unknown_token_id", *token);
    if (name == "pad_token" && token) id("padding_token_id", *token);
  }
}

// Adds the default template, and the other ones under their names.
void add_templates(const Tokenizer& tokenizer, GgufKeys& keys) {
  if (const std::string_view text = tokenizer.chat_template(); !text.empty())
    keys.text("tokenizer.chat_template", text);
  std::vector<std::string> names;
  for (const auto& [name, text] : read_tokenizer_config(tokenizer.files(), "").named_templates) {
    if (name == "default" || name.empty()) continue;
    keys.text("tokenizer.chat_template." + name, text);
    names.push_back(name);
  }
  if (!names.empty()) keys.texts("tokenizer.chat_templates", names);
}

// Adds placeholders: bytes as sentencepiece spells them, which llama.cpp needs to tokenize, then
// arbitrary texts.
void add_placeholders(int64_t vocab_size, GgufKeys& keys) {
  Tokens tokens;
  for (int64_t i = vocab_size; i-- > 0;) {
    const std::string text = i < 256 ? fmt::format("<0x{:02X}>", i) : fmt::format("<{}>", i);
    tokens.set(static_cast<size_t>(i), text,
               i < 256    ? kTokenByte
               : i == 256 ? kTokenUnknown
                          : kTokenNormal);
  }
  keys.text("tokenizer.ggml.model", "llama");
  keys.texts("tokenizer.ggml.tokens", tokens.texts);
  keys.f32s("tokenizer.ggml.scores", tokens.scores);
  keys.i32s("tokenizer.ggml.token_type", tokens.types);
  if (vocab_size > 256) keys.u32("tokenizer.ggml.unknown_token_id", 256);
}

// Returns the tokenizer.json, or the equivalent of vocab.json and merges.txt.
std::string json_of(const Tokenizer& tokenizer) {
  if (const std::string* json = file_named(tokenizer, "tokenizer.json")) return *json;
  TokenizerConfig config = read_tokenizer_config(tokenizer.files(), "");
  return tokenizer_json_of_merges(tokenizer.files(), "", config);
}

// Returns a GGUF file with these keys alone.
std::shared_ptr<const FileBytes> header_of(const GgufKeys& keys) {
  ByteWriter w;
  w.text("GGUF");
  w.u32(3);
  w.u64(0);
  w.u64(keys.count());
  w.bytes(keys.bytes());
  const auto bytes = std::make_shared<const std::vector<std::byte>>(w.take());
  return std::make_shared<const FileBytes>("tokenizer", *bytes, bytes);
}

// Reads the keys back and throws unless they tokenize like the tokenizer: the text of every token,
// alone and after another.
void require_same(const Tokenizer& tokenizer, const GgufKeys& keys, int64_t vocab_size) {
  const auto back = Tokenizer::load(
      *memory_source(vocabulary_files(Gguf::parse(header_of(keys)), vocab_size), "tokenizer"));
  const auto most = static_cast<int32_t>(vocab_size), size = std::min(tokenizer.size(), most);
  if (std::min(back->size(), most) != size)
    refuse("tokens", std::to_string(size), std::to_string(back->size()));
  for (const char* name : {"", "tool_use"}) {
    if (back->chat_template(name) != tokenizer.chat_template(name))
      refuse("chat_template", "what a key can hold", "another text");
  }
  std::string before;
  for (int32_t id = 0; id < size; ++id) {
    const std::string text = tokenizer.bytes(id);
    const std::string both = before + text + " " + text;
    if (back->piece(id) != tokenizer.piece(id) ||
        back->is_special(id) != tokenizer.is_special(id) ||
        back->encode(both) != tokenizer.encode(both))
      refuse("tokens[" + std::to_string(id) + "]", "the ids of the checkpoint's own tokenizer",
             "others around " + printable(text, 60));
    before = text;
  }
}

}  // namespace

GgufLeftOut add_tokenizer_keys(const FileSource& source, const GenerationConfig& generation,
                               int64_t vocab_size, GgufTokenizer which, GgufKeys& keys) {
  if (which == GgufTokenizer::placeholder) {
    add_placeholders(vocab_size, keys);
    return {};
  }
  const std::vector<std::string> files = Tokenizer::files_of(source);
  const bool there = !files.empty() && is_vocabulary_file(files.front());
  if (!there || which == GgufTokenizer::none) {
    keys.text("tokenizer.ggml.model", "no_vocab");
    return {};
  }
  const auto tokenizer = Tokenizer::load(source);
  const std::string* const model = file_named(*tokenizer, "tokenizer.model");
  const std::string json = model == nullptr ? json_of(*tokenizer) : "";
  const PlainJson parsed = model == nullptr ? PlainJson::parse(json) : PlainJson();
  Tokens tokens =
      model == nullptr ? of_json(*tokenizer, parsed) : of_sentencepiece(*tokenizer, *model);
  const GgufLeftOut left_out = keep_rows(vocab_size, tokens);
  const bool words = model == nullptr && !parsed["model"].value("byte_fallback", false);
  keys.text("tokenizer.ggml.model", words ? "gpt2" : "llama");
  if (words) {
    const VocabularyRules* const rules = vocabulary_rules_of(parsed);
    if (rules == nullptr)
      refuse("pre_tokenizer", "one that llama.cpp has a name for (docs/models.md)",
             printable(parsed.value("pre_tokenizer", PlainJson()).dump(), 200));
    keys.text("tokenizer.ggml.pre", rules->name);
    keys.texts("tokenizer.ggml.merges", tokens.merges);
    // llama.cpp does not normalise, and a pattern's name implies at most one of these settings.
    const bool normalizes = !parsed.value("normalizer", PlainJson()).is_null(),
               ignores = parsed["model"].value("ignore_merges", false);
    if (normalizes != rules->nfc || ignores != rules->ignore_merges)
      keys.text("tokenizer.huggingface.json", json);
  } else {
    keys.f32s("tokenizer.ggml.scores", tokens.scores);
    keys.boolean("tokenizer.ggml.add_space_prefix", tokens.space_prefix);
  }
  // llama.cpp needs a token for each row of the embeddings. Converters fill up with this name.
  const auto last = static_cast<size_t>(vocab_size) - 1;
  if (last >= tokens.texts.size()) tokens.set(last, fmt::format("[PAD{}]", last), kTokenUnused);
  keys.texts("tokenizer.ggml.tokens", tokens.texts);
  keys.i32s("tokenizer.ggml.token_type", tokens.types);
  add_special(*tokenizer, generation, keys);
  const bool adds_bos = !tokenizer->encode("a").empty() && tokenizer->bos() &&
                        tokenizer->encode("a").front() == *tokenizer->bos();
  keys.boolean("tokenizer.ggml.add_bos_token", adds_bos);
  keys.boolean("tokenizer.ggml.add_eos_token", false);
  add_templates(*tokenizer, keys);
  require_same(*tokenizer, keys, vocab_size);
  return left_out;
}

}  // namespace stet
