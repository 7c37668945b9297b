#include "src/text/tokenizer_files.hpp"

#include <algorithm>

#include "src/gguf/tensors.hpp"
#include "src/text/tokenizer_json.hpp"
#include "stet/base/limits.hpp"
#include "stet/checkpoint/gguf.hpp"

namespace stet {
namespace {

// Reads a file. Any io Error names it and calls it unreadable.
std::string read_file(const FileSource& source, const std::string& name) {
  const bool json = name == "tokenizer.json" || name == "vocab.json" || name == "merges.txt";
  try {
    return source.read(name, json                        ? kMaxTokenizerJson
                             : name == "tokenizer.model" ? kMaxTokenizerModel
                                                         : kMaxTokenizerConfig);
  } catch (const Error& e) {
    if (e.kind != ErrorKind::io) throw;
    throw Error(ErrorKind::io, e.file, "", "", "cannot be read");
  }
}

// Classes of transformers that read vocab.json and merges.txt, with their way to split text.
struct MergesClass {
  const char* name;
  const char* model_type;  // in config.json; used if no class is named
  const char* pattern;     // null: ByteLevel's
  const char* bos;         // special tokens that a config may omit
  const char* eos;
};
constexpr const char* kEndOfText = "<|endoftext|>";
constexpr MergesClass kClasses[] = {
    {"GPT2Tokenizer", "gpt2", nullptr, kEndOfText, kEndOfText},
    {"Qwen2Tokenizer", "qwen",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     nullptr, kEndOfText}};

const MergesClass& class_of(const Tokenizer::Files& files, const TokenizerConfig& config,
                            const std::string& where) {
  std::string name = config.tokenizer_class, type;
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  if (const std::string* text = find_file(files, "config.json"); text != nullptr && name.empty())
    type = JsonNode(parse_json_document(*text, where + "config.json"), where, "")
               .string_or("model_type", "");
  std::string known;
  for (const MergesClass& c : kClasses) {
    if (name == c.name || (name.empty() && type.starts_with(c.model_type))) return c;
    known += (known.empty() ? "" : " or ") + std::string(c.name);
  }
  if (name.empty() && type.empty()) return kClasses[0];  // the file format is that class's
  throw Error(ErrorKind::unsupported, where + "vocab.json", "tokenizer_class",
              known + ", which say how vocab.json and merges.txt split text, or a tokenizer.json",
              name.empty() ? "none, and model_type " + type : config.tokenizer_class);
}

void add_special(const char* name, const char* text, TokenizerConfig& config) {
  const bool named =
      std::ranges::any_of(config.special, [&](const auto& s) { return s.first == name; });
  if (text == nullptr || named) return;
  config.special.emplace_back(name, text);
  if (name == std::string_view("bos_token")) config.bos = text;
  if (name == std::string_view("eos_token")) config.eos = text;
}

// Returns the merges: lines of two pieces separated by a space. The first line may state a version.
nlohmann::json merges_of(std::string_view text) {
  nlohmann::json merges = nlohmann::json::array();
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty() && !line.starts_with("#version")) merges.push_back(line);
  }
  return merges;
}

nlohmann::json pre_tokenizer_of(const MergesClass& c, const TokenizerConfig& config) {
  const nlohmann::json bytes = {{"type", "ByteLevel"},
                                {"add_prefix_space", config.add_prefix_space.value_or(false)},
                                {"trim_offsets", true},
                                {"use_regex", c.pattern == nullptr}};
  if (c.pattern == nullptr) return bytes;
  const nlohmann::json split = {{"type", "Split"},
                                {"pattern", {{"Regex", c.pattern}}},
                                {"behavior", "Isolated"},
                                {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", nlohmann::json::array({split, bytes})}};
}

ErrorKind kind_of(const std::string& name) {
  return name == "unsupported" ? ErrorKind::unsupported : ErrorKind::format;
}

}  // namespace

bool is_vocabulary_file(std::string_view name) {
  return name == "tokenizer.json" || name == "tokenizer.model" || name == "vocab.json" ||
         name == kTokenizerFault;
}

std::vector<std::string> Tokenizer::files_of(const FileSource& source) {
  std::vector<std::string> names;
  const auto add = [&](const char* name) {
    if (source.has(name)) names.push_back(name);
  };
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    if (names.empty()) add(name);
  }
  const bool merges = names.empty() && source.has("vocab.json") && source.has("merges.txt");
  if (merges) names = {"vocab.json", "merges.txt"};
  if (names.empty()) add(kTokenizerFault);
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                           "chat_template.jinja", kAdditionalTemplates, "chat_template.json"})
    add(name);
  // config.json names the model if no file names the tokenizer's class.
  if (merges && !source.has("tokenizer_config.json")) add("config.json");
  return names;
}

std::shared_ptr<const Tokenizer> Tokenizer::load(const std::string& directory) {
  return load(*checkpoint_source(directory));
}

Tokenizer::Files read_tokenizer_files(const FileSource& source) {
  Tokenizer::Files files;
  for (const std::string& name : Tokenizer::files_of(source))
    files.emplace_back(name, read_file(source, name));
  return files;
}

std::string tokenizer_fault_text(const Error& error) {
  const nlohmann::json text = {
      {"kind", error.kind == ErrorKind::unsupported ? "unsupported" : "format"},
      {"file", error.file},
      {"field", error.field},
      {"expected", error.expected},
      {"found", error.found}};
  return text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void throw_tokenizer_fault(const std::string& text, const std::string& file) {
  const nlohmann::json document = parse_json_document(text, file);
  const JsonNode root(document, file, "");
  throw Error(kind_of(root.string_or("kind", "")), root.string_or("file", file),
              root.string_or("field", ""), root.string_or("expected", "a tokenizer"),
              root.string_or("found", "none"));
}

void throw_no_vocabulary(const FileSource& source) {
  std::string found = "neither";
  for (const auto& [name, text] :
       {std::pair("vocab.json", "vocab.json without merges.txt"),
        std::pair("merges.txt", "merges.txt without vocab.json"),
        std::pair("tekken.json", "tekken.json"), std::pair("vocab.txt", "vocab.txt"),
        std::pair("spiece.model", "spiece.model"), std::pair("tiktoken.model", "tiktoken.model")}) {
    if (found == "neither" && source.has(name)) found = text;
  }
  std::string whole = source.path_of("");
  if (whole.ends_with(": ")) whole.resize(whole.size() - 2);
  if (source.has(kGgufName))
    throw Error(ErrorKind::io, whole, "tokenizer.ggml.tokens", "a vocabulary", "none");
  throw Error(ErrorKind::io, whole, "", "tokenizer.json or tokenizer.model", found);
}

std::string tokenizer_json_of_merges(const Tokenizer::Files& files, const std::string& where,
                                     TokenizerConfig& config) {
  const std::string& vocabulary = *find_file(files, "vocab.json");
  const size_t begin = vocabulary.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos || vocabulary[begin] != '{' || !nlohmann::json::accept(vocabulary))
    parse_json_document(vocabulary, where + "vocab.json");  // throws and says what it is
  const MergesClass& c = class_of(files, config, where);
  add_special("bos_token", c.bos, config);
  add_special("eos_token", c.eos, config);
  add_special("unk_token", c.eos, config);
  const nlohmann::json decoder = {{"type", "ByteLevel"},
                                  {"add_prefix_space", true},
                                  {"trim_offsets", true},
                                  {"use_regex", true}};
  try {
    return R"({"normalizer":)" +
           (c.pattern == nullptr ? "null" : nlohmann::json{{"type", "NFC"}}.dump()) +
           R"(,"pre_tokenizer":)" + pre_tokenizer_of(c, config).dump() + R"(,"decoder":)" +
           decoder.dump() + R"(,"model":{"type":"BPE","merges":)" +
           merges_of(*find_file(files, "merges.txt")).dump() + R"(,"vocab":)" + vocabulary + "}}";
  } catch (const nlohmann::json::type_error&) {
    throw Error(ErrorKind::format, where + "merges.txt", "", "UTF-8", "other bytes");
  }
}

}  // namespace stet
