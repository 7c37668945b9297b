#include "src/gguf/vocabulary_rules.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "stet/checkpoint/gguf.hpp"

namespace stet {
namespace {

constexpr const char* kGpt2[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"};
constexpr const char* kLlama3[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr const char* kQwen2[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr const char* kQwen35[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr const char* kGpt4o[] = {
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr const char* kTekken[] = {
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr const char* kSuperBpe[] = {R"(\p{N}+)", R"((?=(\d{3})+(?!\d)))"};
constexpr const char* kDeepseekLlm[] = {
    "[\r\n]",
    R"(\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+)",
    R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)",
    R"(\s+$)",
    R"([一-龥ࠀ-一가-퟿]+)",
    R"(\p{N}+)"};
constexpr const char* kDeepseekCoder[] = {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)",
                                          R"([一-龥ࠀ-一가-퟿]+)", R"(\p{N})"};
constexpr const char* kDeepseekV3[] = {R"(\p{N}{1,3})", R"([一-龥぀-ゟ゠-ヿ]+)",
                                       R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^)"
                                       "\r\n"
                                       R"(\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[)"
                                       "\r\n"
                                       R"(]*|\s*[)"
                                       "\r\n"
                                       R"(]+|\s+(?!\S)|\s+)"};
// For files older than the key, and for those whose converter did not recognize the tokenizer.
constexpr const char* kDefault[] = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2[0], R"(\p{N}+)",
                                    R"([0-9][0-9][0-9])"};

// Among entries with equal rules, the first is the name that is written.
constexpr VocabularyRules kRules[] = {
    {"gpt-2", kGpt2},
    {"olmo", kGpt2},
    {"phi-2", kGpt2},
    {.name = "refact", .patterns = kGpt2, .digits = true},
    {.name = "starcoder", .patterns = kGpt2, .digits = true},
    {.name = "smollm", .patterns = kGpt2, .digits = true},
    {"dbrx", kLlama3},
    {"smaug-bpe", kLlama3},
    {"glm4", kLlama3},
    {"chatglm-bpe", kLlama3},
    {.name = "llama-bpe", .patterns = kLlama3, .ignore_merges = true, .adds_bos = true},
    {.name = "llama-v3", .patterns = kLlama3, .ignore_merges = true, .adds_bos = true},
    {.name = "llama3", .patterns = kLlama3, .ignore_merges = true, .adds_bos = true},
    {.name = "lfm2", .patterns = kLlama3, .ignore_merges = true, .adds_bos = true},
    {.name = "qwen2", .patterns = kQwen2, .nfc = true},
    {.name = "deepseek-r1-qwen", .patterns = kQwen2, .nfc = true},
    {.name = "qwen35", .patterns = kQwen35, .nfc = true},
    {"gpt-4o", kGpt4o},
    {"llama4", kGpt4o},
    {.name = "tekken", .patterns = kTekken, .ignore_merges = true, .adds_bos = true},
    {"superbpe", kSuperBpe},
    {"deepseek-llm", kDeepseekLlm},
    {"deepseek-coder", kDeepseekCoder},
    {"deepseek-v3", kDeepseekV3},
    {"default", kDefault}};

using PlainJson = nlohmann::json;

// Returns the patterns of a pre-tokenizer, in order. Returns nothing if it does something that the
// rules here cannot express. A Split may also be ByteLevel's built-in one.
std::optional<std::vector<std::string>> steps_of(const PlainJson& tokenizer) {
  const PlainJson none;
  PlainJson before = tokenizer.value("pre_tokenizer", none);
  if (before.value("type", "") == "ByteLevel")
    before = {{"type", "Sequence"}, {"pretokenizers", PlainJson::array({before})}};
  if (before.value("type", "") != "Sequence" || !before.contains("pretokenizers"))
    return std::nullopt;
  const PlainJson& steps = before["pretokenizers"];
  if (!steps.is_array() || steps.empty() || steps.back().value("type", "") != "ByteLevel" ||
      steps.back().value("add_prefix_space", true))
    return std::nullopt;
  std::vector<std::string> found;
  for (const auto& step : steps) {
    const std::string type = step.value("type", "");
    if (type == "Digits" && step.value("individual_digits", false))
      found.push_back(R"(\p{N})");
    else if (type == "Split" && step.value("behavior", "") == "Isolated" &&
             !step.value("invert", false))
      found.push_back(step.value("pattern", none).value("Regex", ""));
    else if (type == "ByteLevel" && &step == &steps.back())
      found.insert(found.end(), step.value("use_regex", true), std::string(kGpt2[0]));
    else
      return std::nullopt;
  }
  return found;
}

}  // namespace

const VocabularyRules* find_vocabulary_rules(std::string_view name) {
  const auto found = std::ranges::find(
      kRules, name, [](const VocabularyRules& rules) { return std::string_view(rules.name); });
  return found == std::end(kRules) ? nullptr : &*found;
}

std::vector<std::string> pre_tokenizer_names() {
  std::vector<std::string> names;
  for (const VocabularyRules& rules : kRules) names.push_back(rules.name);
  return names;
}

nlohmann::ordered_json pre_tokenizer_json(const VocabularyRules& rules) {
  using Json = nlohmann::ordered_json;
  Json steps = Json::array();
  if (rules.digits) steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
  for (const char* pattern : rules.patterns)
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", pattern}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  steps.push_back({{"type", "ByteLevel"},
                   {"add_prefix_space", false},
                   {"trim_offsets", true},
                   {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

const VocabularyRules* vocabulary_rules_of(const nlohmann::json& tokenizer) {
  const auto steps = steps_of(tokenizer);
  const bool ignores = tokenizer.value("model", PlainJson()).value("ignore_merges", false);
  const VocabularyRules* nearest = nullptr;
  for (const VocabularyRules& rules : kRules) {
    std::vector<std::string> expected(rules.digits ? 1 : 0, R"(\p{N})");
    expected.insert(expected.end(), rules.patterns.begin(), rules.patterns.end());
    if (steps != expected) continue;
    if (ignores == rules.ignore_merges) return &rules;
    if (nearest == nullptr) nearest = &rules;
  }
  return nearest;
}

}  // namespace stet
