#include "src/text/tokenizer_config.hpp"

#include <algorithm>

#include "src/text/tokenizer_files.hpp"
#include "src/text/tokenizer_json.hpp"

namespace stet {
namespace {

// Returns a token's text, which is given directly or in an object.
std::string token_text(const JsonNode& node) {
  return node.json().is_object() ? node.at("content").string() : node.string();
}

// Reads one template, or several by name. Without one named "default", conversations without tools
// have none.
void read_chat_template(const JsonNode& node, TokenizerConfig& config) {
  config.named_templates.clear();
  config.template_places = {{"", node.file() + ": " + node.path()}};
  if (!node.json().is_array()) {
    config.chat_template = node.string();
    return;
  }
  for (const JsonNode& entry : node.elements()) {
    const std::string name = entry.at("name").string();
    config.named_templates.emplace(name, entry.at("template").string());
    config.template_places.emplace(name, node.file() + ": " + entry.path());
  }
  const auto standard = config.named_templates.find("default");
  config.chat_template = standard == config.named_templates.end() ? "" : standard->second;
  if (standard != config.named_templates.end())
    config.template_places[""] = config.template_places["default"];
}

// Names the keys of a GGUF file in place of the file that was made of them.
void place_in_gguf(const std::string& where, TokenizerConfig& config) {
  const std::string key = where + kGgufTemplate;
  for (auto& [name, place] : config.template_places)
    place = name.empty() || name == "default" ? key : key + "." + name;
}

void read_added_decoder(const JsonNode& node, TokenizerConfig& config) {
  if (!node.json().is_object()) node.fail("an object");
  config.has_added_decoder = true;
  for (const auto& [key, value] : node.json().items()) {
    const JsonNode entry(value, node.file(), node.path() + "." + key);
    AddedToken token;
    if (key.empty() || key.size() > 9 || key.find_first_not_of("0123456789") != std::string::npos) {
      entry.fail("an id as key");
    }
    token.id = std::stoi(key);
    token.text = entry.at("content").string();
    token.single_word = entry.boolean_or("single_word", false);
    token.lstrip = entry.boolean_or("lstrip", false);
    token.rstrip = entry.boolean_or("rstrip", false);
    token.special = entry.boolean_or("special", false);
    token.normalized = entry.boolean_or("normalized", !token.special);
    config.added.emplace_back(entry.path(), token);
  }
  std::sort(config.added.begin(), config.added.end(),
            [](const auto& a, const auto& b) { return a.second.id < b.second.id; });
}

// Adds the special tokens named in a file, unless an earlier file has named them.
void read_special(const JsonNode& root, TokenizerConfig& config) {
  const auto known = [&config](std::string_view name) {
    return std::ranges::any_of(config.special, [&](const auto& s) { return s.first == name; });
  };
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    const std::optional<JsonNode> node = root.find(name);
    if (!node || known(name)) continue;
    config.special.emplace_back(name, token_text(*node));
    if (name == std::string_view("bos_token")) config.bos = config.special.back().second;
    if (name == std::string_view("eos_token")) config.eos = config.special.back().second;
  }
  if (known("additional_special_tokens")) return;
  for (const char* name : {"additional_special_tokens", "extra_special_tokens"}) {
    const std::optional<JsonNode> node = root.find(name);
    if (!node) continue;
    if (node->json().is_object()) {
      for (const auto& item : node->json().items()) {
        const JsonNode entry(item.value(), root.file(), node->path() + "." + item.key());
        config.special.emplace_back(item.key(), token_text(entry));
      }
    } else {
      for (const JsonNode& entry : node->elements()) {
        config.special.emplace_back("additional_special_tokens", token_text(entry));
      }
    }
  }
}

void read_config_file(std::string_view bytes, const std::string& where, TokenizerConfig& config) {
  config.present = true;
  const nlohmann::json document = parse_json_document(bytes, config.file);
  const JsonNode root(document, config.file, "");
  const auto flag = [&](const char* name) {
    const std::optional<JsonNode> node = root.find(name);
    return node ? std::optional(node->boolean()) : std::nullopt;
  };
  config.tokenizer_class = root.string_or("tokenizer_class", "");
  config.add_bos = flag("add_bos_token");
  config.add_eos = flag("add_eos_token");
  config.legacy = flag("legacy");
  config.add_prefix_space = flag("add_prefix_space");
  if (const auto node = root.find("chat_template")) read_chat_template(*node, config);
  if (where.ends_with(": ") && tokenizer_note(root, "chat_template") == kGgufTemplate)
    place_in_gguf(where, config);
  if (const auto node = root.find("added_tokens_decoder")) read_added_decoder(*node, config);
  read_special(root, config);
}

// Reads an object of token texts and ids.
void read_added_list(std::string_view bytes, const std::string& file, TokenizerConfig& config) {
  const nlohmann::json document = parse_json_document(bytes, file);
  const JsonNode root(document, file, "");
  if (!document.is_object()) root.fail("an object of tokens and ids");
  for (const auto& [text, id] : document.items()) {
    AddedToken token;
    token.id = static_cast<int32_t>(JsonNode(id, file, text).integer(0, INT32_MAX - 1));
    token.text = text;
    token.special = std::ranges::any_of(
        config.special, [&](const auto& named) { return named.second == token.text; });
    token.normalized = !token.special;
    config.listed.emplace_back(file, token);
  }
  std::ranges::sort(config.listed, {}, [](const auto& token) { return token.second.id; });
}

// Reads template files, which override tokenizer_config.json.
void read_templates(const Tokenizer::Files& files, const std::string& where,
                    TokenizerConfig& config) {
  const std::string* const standard = find_file(files, "chat_template.jinja");
  const std::string* const further = find_file(files, kAdditionalTemplates);
  if (standard != nullptr || further != nullptr) {
    config.named_templates.clear();
    std::erase_if(config.template_places, [](const auto& place) { return !place.first.empty(); });
    if (standard != nullptr) {
      config.chat_template = *standard;
      config.template_places[""] = where + "chat_template.jinja";
    }
    if (further == nullptr) return;
    const std::string file = where + kAdditionalTemplates;
    const nlohmann::json document = parse_json_document(*further, file);
    for (const auto& [name, text] : document.items()) {
      config.named_templates.emplace(name, JsonNode(text, file, name).string());
      config.template_places[name] = where + kAdditionalFolder + "/" + name + ".jinja";
    }
    const auto named = config.named_templates.find("default");
    if (standard == nullptr && named != config.named_templates.end()) {
      config.chat_template = named->second;
      config.template_places[""] = config.template_places["default"];
    }
    return;
  }
  const std::string* const alone = find_file(files, "chat_template.json");
  if (alone == nullptr || !config.chat_template.empty() || !config.named_templates.empty()) return;
  const std::string file = where + "chat_template.json";
  const nlohmann::json document = parse_json_document(*alone, file);
  if (const auto node = JsonNode(document, file, "").find("chat_template"))
    read_chat_template(*node, config);
}

}  // namespace

const std::string* find_file(const Tokenizer::Files& files, std::string_view name) {
  for (const auto& [file, bytes] : files) {
    if (file == name) return &bytes;
  }
  return nullptr;
}

std::string tokenizer_note(const JsonNode& root, const char* name) {
  const std::optional<JsonNode> notes = root.find("stet");
  return notes && notes->json().is_object() ? notes->string_or(name, "") : "";
}

TokenizerConfig read_tokenizer_config(const Tokenizer::Files& files, const std::string& where) {
  TokenizerConfig config;
  if (const std::string* bytes = find_file(files, "tokenizer_config.json")) {
    config.file = where + "tokenizer_config.json";
    read_config_file(*bytes, where, config);
  }
  if (!config.has_added_decoder) {
    if (const std::string* bytes = find_file(files, "special_tokens_map.json")) {
      const std::string file = where + "special_tokens_map.json";
      const nlohmann::json document = parse_json_document(*bytes, file);
      if (config.file.empty()) config.file = file;
      read_special(JsonNode(document, file, ""), config);
    }
    if (const std::string* bytes = find_file(files, "added_tokens.json"))
      read_added_list(*bytes, where + "added_tokens.json", config);
  }
  read_templates(files, where, config);
  return config;
}

void add_config_tokens(const TokenizerConfig& config, TokenizerParts& parts) {
  for (const auto& [field, token] : config.added) {
    const int32_t known = parts.vocabulary.find(token.text);
    const auto it = known == token.id ? parts.added_index.find(known) : parts.added_index.end();
    if (it == parts.added_index.end()) {
      add_token(parts, token, config.file, field);
      continue;
    }
    AddedToken& other = parts.added[it->second];
    other.special = other.special || token.special;
    if (parts.kind != "sentencepiece") continue;  // tokenizer.json sets the rest itself
    other.single_word = token.single_word;
    other.lstrip = token.lstrip;
    other.rstrip = token.rstrip;
  }
  for (const auto& [file, listed] : config.listed) {
    AddedToken token = listed;
    if (const int32_t known = parts.vocabulary.find(token.text); known >= 0) token.id = known;
    if (!parts.added_index.contains(token.id)) add_token(parts, token, file, token.text);
  }
  for (const auto& [name, text] : config.special) {
    AddedToken token;
    token.id = parts.vocabulary.find(text);
    token.text = text;
    if (token.id < 0) continue;
    if (!parts.added_index.contains(token.id))
      add_token(parts, token, config.file, "special tokens");
    parts.added[parts.added_index.at(token.id)].special = true;
  }
}

}  // namespace stet
