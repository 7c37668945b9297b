#include "src/gguf/names.hpp"
#include "src/gguf/vocabulary_marks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "src/base/json_value.hpp"
#include "src/gguf/sampling.hpp"
#include "stet/base/bytes.hpp"
#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"
#include "stet/model/config.hpp"

namespace stet {
namespace {

using Json = nlohmann::ordered_json;

const GgufArchitecture kArchitectures[] = {
    {"llama", "LlamaForCausalLM", "llama", GgufLayout::llama, true, false},
    {"mistral", "MistralForCausalLM", "mistral", GgufLayout::llama, true, false},
    {"qwen2", "Qwen2ForCausalLM", "qwen2", GgufLayout::llama, false, false},
    {"qwen3", "Qwen3ForCausalLM", "qwen3", GgufLayout::llama, false, false},
    {"qwen3moe", "Qwen3MoeForCausalLM", "qwen3_moe", GgufLayout::llama, false, false},
    {"gemma", "GemmaForCausalLM", "gemma", GgufLayout::llama, false, true},
    {"gemma2", "Gemma2ForCausalLM", "gemma2", GgufLayout::four_norms, false, true},
    {"gemma3", "Gemma3ForCausalLM", "gemma3_text", GgufLayout::four_norms, false, true},
    {"gemma3n", "Gemma3nForCausalLM", "gemma3n_text", GgufLayout::gemma3n, false, false},
    {"gemma4", "Gemma4ForCausalLM", "gemma4_text", GgufLayout::gemma4, false, false},
    {"gpt2", "GPT2LMHeadModel", "gpt2", GgufLayout::gpt2, false, false},
    {"granite", "GraniteForCausalLM", "granite", GgufLayout::llama, true, false},
    {"granitemoe", "GraniteMoeForCausalLM", "granitemoe", GgufLayout::llama, true, false},
    {"olmoe", "OlmoeForCausalLM", "olmoe", GgufLayout::llama, false, false},
    {"olmo2", "Olmo2ForCausalLM", "olmo2", GgufLayout::four_norms, false, false},
    {"smollm3", "SmolLM3ForCausalLM", "smollm3", GgufLayout::llama, true, false},
    {"gpt-oss", "GptOssForCausalLM", "gpt_oss", GgufLayout::gpt_oss, false, false},
    {"gptneox", "GPTNeoXForCausalLM", "gpt_neox", GgufLayout::gpt_neox, false, false},
    {"phi3", "Phi3ForCausalLM", "phi3", GgufLayout::phi3, false, false},
    {"qwen3next", "Qwen3NextForCausalLM", "qwen3_next", GgufLayout::qwen_hybrid, false, false},
    {"qwen35", "Qwen3_5ForCausalLM", "qwen3_5_text", GgufLayout::qwen_hybrid, false, false},
    {"qwen35moe", "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", GgufLayout::qwen_hybrid, false,
     false},
    {"lfm2", "Lfm2ForCausalLM", "lfm2", GgufLayout::lfm2, false, false},
    {"lfm2moe", "Lfm2MoeForCausalLM", "lfm2_moe", GgufLayout::lfm2, false, false},
    {"granitehybrid", "GraniteMoeHybridForCausalLM", "granitemoehybrid", GgufLayout::granite_hybrid,
     true, false}};

// Returns whether a key of stet's own says that the model is a Mistral: llama.cpp takes it for a
// Llama.
bool is_mistral(const Gguf& keys) { return keys.text(kGgufModelType).value_or("") == "mistral"; }

// Returns true if stet knows the experts of this architecture.
bool may_have_experts(std::string_view architecture) {
  return architecture == "llama" || architecture == "qwen3moe" || architecture == "olmoe" ||
         architecture == "granitemoe" || architecture == "gpt-oss";
}

// Returns true if layers of this layout may have a recurrence in place of attention.
bool may_be_recurrent(GgufLayout layout) {
  return layout == GgufLayout::qwen_hybrid || layout == GgufLayout::lfm2 ||
         layout == GgufLayout::granite_hybrid;
}

const GgufArchitecture* find_architecture(const std::string& name) {
  for (const GgufArchitecture& a : kArchitectures) {
    if (name == a.name) return &a;
  }
  return nullptr;
}

bool has_tensor_ending(const std::vector<Gguf>& parts, std::string_view ending) {
  return std::ranges::any_of(parts, [&](const Gguf& part) {
    return std::ranges::any_of(part.tensors(),
                               [&](const GgufTensor& t) { return t.name.ends_with(ending); });
  });
}

// Returns what a file is if it is not a model, or "" for a model.
std::string other_kind(const std::vector<Gguf>& parts) {
  const Gguf& keys = parts.front();
  const std::string type = keys.text("general.type").value_or("model"),
                    architecture = keys.text("general.architecture").value_or("");
  const bool lora = keys.has("adapter.type") || has_tensor_ending(parts, ".lora_a");
  if (type == "adapter" || lora)
    return "an adapter (llama-export-lora of llama.cpp merges it into its base model)";
  if (type == "mmproj" || architecture == "clip") return "what projects images, beside a model";
  if (type == "imatrix" || has_tensor_ending(parts, ".in_sum2"))
    return "an importance matrix of llama.cpp";
  if (architecture == "controlvector") return "a control vector";
  if (type == "vocab" ||
      std::ranges::all_of(parts, [](const Gguf& p) { return p.tensors().empty(); }))
    return "a vocabulary without weights";
  return type == "model" ? "" : printable(type, 60);
}

void require_model(const std::vector<Gguf>& parts) {
  const std::string found = other_kind(parts);
  if (!found.empty())
    throw Error(ErrorKind::unsupported, parts.front().path(), "general.type", "a model", found);
}

const GgufArchitecture& architecture_of(const Gguf& keys) {
  const std::string name = keys.text("general.architecture").value_or("");
  if (const GgufArchitecture* const found = find_architecture(name)) return *found;
  std::string known;
  for (const GgufArchitecture& a : kArchitectures)
    known += (known.empty() ? "" : ", ") + std::string(a.name);
  throw Error(ErrorKind::unsupported, keys.path(), "general.architecture", "one of " + known,
              printable(name, 60));
}

std::vector<float> numbers_of(const Gguf& keys, const GgufTensor& tensor, int64_t pairs) {
  std::vector<float> numbers(tensor.bytes.size() / sizeof(float));
  if (tensor.type != 0 || numbers.size() != static_cast<size_t>(pairs))
    keys.fail(tensor.name, std::to_string(pairs) + " numbers of F32",
              std::to_string(numbers.size()));
  std::memcpy(numbers.data(), tensor.bytes.data(), tensor.bytes.size());
  return numbers;
}

constexpr double kTurn = 6.283185307179586;  // in radians

// Returns the lengths that may be those of the original training: powers of two, and what each pair
// between the two bounds gives.
std::vector<double> likely_lengths(const std::vector<float>& frequencies,
                                   const std::vector<float>& divisors, double factor) {
  std::vector<double> lengths;
  for (int64_t length = 64; length <= 1 << 20; length *= 2)
    lengths.push_back(static_cast<double>(length));
  for (size_t i = 0; i < divisors.size(); ++i) {
    const double d = static_cast<double>(divisors[i]);
    if (!(d > 1 + 1e-5 && d < factor * (1 - 1e-5))) continue;
    const double kept = (1 / d - 1 / factor) / (1 - 1 / factor),
                 length = std::round((1 + 3 * kept) * kTurn / static_cast<double>(frequencies[i]));
    if (length >= 1 && length <= static_cast<double>(kMaxPositions)) lengths.push_back(length);
  }
  return lengths;
}

// Returns the scaling that the tensor rope_freqs describes.
Json llama3_scaling(const Gguf& keys, const GgufTensor& tensor, double theta, int64_t head_dim) {
  const auto scaled = llama3_of(theta, head_dim, numbers_of(keys, tensor, head_dim / 2));
  if (!scaled)
    throw Error(ErrorKind::unsupported, keys.path(), tensor.name, "",
                "the scaling of frequencies is not Llama 3's, the only one that is supported");
  return {{"rope_type", "llama3"},
          {"factor", scaled->factor},
          {"low_freq_factor", scaled->low_freq_factor},
          {"high_freq_factor", scaled->high_freq_factor},
          {"original_max_position_embeddings", static_cast<int64_t>(scaled->original_positions)}};
}

}  // namespace

std::optional<Rope> llama3_of(double theta, int64_t head_dim, const std::vector<float>& divisors) {
  Rope plain, scaled;
  plain.theta = scaled.theta = theta;
  scaled.scaling = Rope::Scaling::llama3;
  scaled.factor = *std::max_element(divisors.begin(), divisors.end());
  const std::vector<float> from = inverse_frequencies(plain, head_dim);
  for (const double length : likely_lengths(from, divisors, scaled.factor)) {
    scaled.original_positions = length;
    const std::vector<float> to = inverse_frequencies(scaled, head_dim);
    const auto close = [&](size_t i) {
      return std::abs(from[i] / to[i] - divisors[i]) <= 1e-5f * divisors[i];
    };
    size_t i = 0;
    while (i < from.size() && close(i)) ++i;
    if (i == from.size()) return scaled;
  }
  return std::nullopt;
}

const GgufArchitecture& architecture_for(const ModelConfig& c, const std::string& file) {
  const std::string name = c.family == "mistral" || c.family == "mixtral" ? "llama"
                           : c.family == "olmo3"                          ? "olmo2"
                           : c.family == "gpt_neox"                       ? "gptneox"
                           : c.family == "qwen3_moe"                      ? "qwen3moe"
                           : c.family == "gpt_oss"                        ? "gpt-oss"
                           : c.family == "qwen3_next"                     ? "qwen3next"
                           : c.family == "qwen3_5"                        ? "qwen35"
                           : c.family == "qwen3_5_moe"                    ? "qwen35moe"
                           : c.family == "lfm2_moe"                       ? "lfm2moe"
                           : c.family == "granitemoehybrid"               ? "granitehybrid"
                                                                          : c.family;
  if (const GgufArchitecture* const found = find_architecture(name)) return *found;
  throw Error(ErrorKind::unsupported, file, "model_type", "",
              "models of the family " + c.family + " cannot be written as GGUF files");
}

GgufNames::GgufNames(const std::vector<Gguf>& parts)
    : parts_(parts),
      keys_(parts.front()),
      architecture_((require_model(parts), architecture_of(keys_))) {
  const GgufTensor* const embedding = find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2)
    keys_.fail("token_embd.weight", "a matrix", embedding == nullptr ? "none" : "another shape");
  vocab_size_ = embedding->shape[0];
  heads_ = need("attention.head_count", kMaxHeads);
  const bool each =
      keys_.has(key("attention.head_count_kv")) && keys_.is_array(key("attention.head_count_kv"));
  if (each || architecture_.layout == GgufLayout::gemma4)  // 0 for layers without attention
    kv_heads_ = std::ranges::max(of_layers("attention.head_count_kv", 0, heads_));
  else
    kv_heads_ = keys_.integer(key("attention.head_count_kv"), 0, heads_).value_or(heads_);
  if (kv_heads_ > 0) return;
  if (!may_be_recurrent(architecture_.layout))
    keys_.fail(key("attention.head_count_kv"), "an integer in 1.." + std::to_string(heads_), "0");
  if (const std::optional<int64_t> attends = layer_with("attn_q.weight"))
    keys_.fail(key("attention.head_count_kv"),
               fmt::format("the key and value heads of layer {}, which has attention", *attends),
               "0 for every layer");
  kv_heads_ = keys_.integer(kGgufKvHeads, 1, heads_).value_or(heads_);  // no layer has attention
}

const GgufTensor* GgufNames::find(const std::string& name) const {
  for (const Gguf& part : parts_) {
    for (const GgufTensor& t : part.tensors()) {
      if (t.name == name) return &t;
    }
  }
  return nullptr;
}

std::vector<float> GgufNames::pair_divisors(const GgufTensor& tensor, int64_t pairs) const {
  return numbers_of(keys_, tensor, pairs);
}

int64_t GgufNames::need(const char* name, int64_t max) const {
  const auto value = keys_.integer(key(name), 1, max);
  if (!value) keys_.fail(key(name), "an integer", "nothing");
  return *value;
}

double GgufNames::need_number(const char* name) const {
  const auto value = keys_.number(key(name));
  if (!value || !(std::abs(*value) <= 1e30))
    keys_.fail(key(name), "a finite number", value ? fmt::format("{}", *value) : "nothing");
  return *value;
}

bool GgufNames::tied() const {
  const GgufTensor* const head = find("output.weight");
  const GgufTensor& embedding = *find("token_embd.weight");
  return head == nullptr || (head->type == embedding.type && head->shape == embedding.shape &&
                             same_bytes(head->bytes, embedding.bytes));
}

// Returns the shortest decimal of the file's float32, which is the published number.
nlohmann::ordered_json GgufNames::published_number(const char* name) const {
  return Json::parse(fmt::format("{}", static_cast<float>(need_number(name))));
}

nlohmann::ordered_json GgufNames::gpt2_config() const {
  return {{"n_embd", need("embedding_length", kMaxSize)},
          {"n_inner", need("feed_forward_length", kMaxSize)},
          {"n_layer", need("block_count", 1024)},
          {"n_head", heads_},
          {"n_positions", need("context_length", kMaxPositions)},
          {"layer_norm_epsilon", published_number("attention.layer_norm_epsilon")},
          {"activation_function", "gelu_new"}};
}

// Returns the fields that all architectures after GPT-2 share.
nlohmann::ordered_json GgufNames::common_config() const {
  const int64_t hidden = need("embedding_length", kMaxSize),
                head_dim =
                    keys_.integer(key("attention.key_length"), 2, 65536).value_or(hidden / heads_);
  const double theta = keys_.number(key("rope.freq_base")).value_or(10000);
  if (head_dim < 2 || head_dim % 2 != 0)
    keys_.fail(key("attention.key_length"), "an even number", std::to_string(head_dim));
  if (!(theta >= 1 && theta <= 1e12))
    keys_.fail(key("rope.freq_base"), "a number in 1..1e12", fmt::format("{}", theta));
  Json c = {{"hidden_size", hidden},
            {"num_hidden_layers", need("block_count", 1024)},
            {"num_attention_heads", heads_},
            {"num_key_value_heads", kv_heads_},
            {"head_dim", head_dim},
            {"max_position_embeddings", need("context_length", kMaxPositions)},
            {"rope_theta", theta},
            {"attention_bias", find("blk.0.attn_q.bias") != nullptr},
            {architecture_.gemma ? "hidden_activation" : "hidden_act",
             architecture_.gemma ? "gelu_pytorch_tanh" : "silu"}};
  require_whole_rotation(head_dim);
  const bool gemma4 = architecture_.layout == GgufLayout::gemma4,  // layers have different shapes
      gemma3n = architecture_.layout == GgufLayout::gemma3n;
  // Mixtures need no width of an MLP.
  const bool mlp = architecture_.layout != GgufLayout::qwen_hybrid ||
                   keys_.integer(key("feed_forward_length"), 0, kMaxSize).value_or(0) > 0;
  if (!gemma4 && !gemma3n && mlp) c["intermediate_size"] = need("feed_forward_length", kMaxSize);
  if (architecture_.layout != GgufLayout::gpt_neox)
    c["rms_norm_eps"] = published_number("attention.layer_norm_rms_epsilon");
  if (std::string(architecture_.model_type).starts_with("qwen")) c.erase("attention_bias");
  add_scaling(c);
  if (const GgufTensor* freqs = find("rope_freqs.weight"); freqs != nullptr && !gemma4) {
    require_no_scaling(c, freqs->name);
    c["rope_scaling"] = llama3_scaling(keys_, *freqs, theta, head_dim);
  }
  const auto window = keys_.integer(key("attention.sliding_window"), 0, kMaxPositions);
  if (window) c["sliding_window"] = *window > 0 ? Json(*window) : Json(nullptr);
  return c;
}

// Throws if the file rotates a part of each head, in an architecture whose config cannot say so.
void GgufNames::require_whole_rotation(int64_t head_dim) const {
  static constexpr GgufLayout kWhole[] = {GgufLayout::llama, GgufLayout::four_norms,
                                          GgufLayout::gemma3n, GgufLayout::gpt_oss,
                                          GgufLayout::lfm2};
  if (std::ranges::find(kWhole, architecture_.layout) == std::end(kWhole)) return;
  const auto turned = keys_.integer(key("rope.dimension_count"), 0, kMaxSize);
  if (turned && *turned != head_dim)
    throw Error(ErrorKind::unsupported, keys_.path(), key("rope.dimension_count"),
                fmt::format("{}, all of a head", head_dim), std::to_string(*turned));
}

// Adds LongRoPE's two sets of divisors, which llama.cpp stores as tensors.
void GgufNames::add_long_factors(nlohmann::ordered_json& c) const {
  const GgufTensor *const longs = find("rope_factors_long.weight"),
                          *const shorts = find("rope_factors_short.weight");
  if (longs == nullptr && shorts == nullptr) return;
  const int64_t dim = need("rope.dimension_count", kMaxHeadDim),
                original = need("rope.scaling.original_context_length", kMaxPositions);
  Json to = {{"rope_type", "longrope"}};
  for (const auto& [tensor, name] :
       {std::pair(longs, "long_factor"), std::pair(shorts, "short_factor")}) {
    if (tensor == nullptr) keys_.fail(name, "a tensor of such factors", "none");
    to[name] = numbers_of(keys_, *tensor, dim / 2);
  }
  require_no_scaling(c, longs->name);
  c["original_max_position_embeddings"] = original;
  c["rope_scaling"] = to;
  if (!keys_.has(key("rope.scaling.attn_factor"))) return;
  // A factor that follows from the positions is left out, since the file has it rounded to float32.
  const ModelConfig paper = read_model_config(json_reader(c, keys_.path()));
  const double factor = need_number("rope.scaling.attn_factor");
  if (std::abs(factor - static_cast<double>(rope_magnitude(paper.ropes.at(0)))) > 1e-5)
    c["rope_scaling"]["attention_factor"] = factor;
}

// Adds the rotated part of a head as a fraction, slightly increased so that readers who truncate
// get the exact number of dimensions.
void GgufNames::add_rotary_part(nlohmann::ordered_json& c, const char* field) const {
  const int64_t head_dim = c["head_dim"];
  const int64_t turned = keys_.integer(key("rope.dimension_count"), 2, head_dim).value_or(head_dim);
  if (turned == head_dim)
    c[field] = 1.0;
  else
    c[field] = (static_cast<double>(turned) + 0.25) / static_cast<double>(head_dim);
}

// Throws if keys scale the positions of a model whose tensor `divisors` scales them too. A linear
// factor of 1 scales nothing.
void GgufNames::require_no_scaling(const nlohmann::ordered_json& c,
                                   const std::string& divisors) const {
  if (!c.contains("rope_scaling")) return;
  const Json& scaling = c["rope_scaling"];
  if (scaling["rope_type"] == "linear" && scaling["factor"] == 1) return;
  throw Error(
      ErrorKind::unsupported, keys_.path(),
      key(keys_.has(key("rope.scaling.factor")) ? "rope.scaling.factor" : "rope.scale_linear"),
      "no scaling beside that of " + divisors,
      fmt::format("{} by {}", scaling["rope_type"].get<std::string>(),
                  scaling["factor"].get<double>()));
}

// Adds the scaling that the keys state. Its type is linear unless the file says another, and old
// files call the factor rope.scale_linear, as in llama.cpp.
void GgufNames::add_scaling(nlohmann::ordered_json& c) const {
  const bool typed = keys_.has(key("rope.scaling.type"));
  const std::string scaling = keys_.text(key("rope.scaling.type")).value_or("linear");
  if (scaling == "none") return;
  if (scaling == "longrope" && architecture_.layout == GgufLayout::phi3) return;  // tensors have it
  if (scaling != "linear" && scaling != "yarn")
    throw Error(ErrorKind::unsupported, keys_.path(), key("rope.scaling.type"),
                "none, linear or yarn", printable(scaling, 40));
  const char* const named = keys_.has(key("rope.scaling.factor")) || scaling == "yarn"
                                ? "rope.scaling.factor"
                                : "rope.scale_linear";
  const double factor = scaling == "yarn" || keys_.has(key(named)) ? need_number(named) : 0;
  if (scaling == "linear" && (factor == 0 || (factor == 1 && !typed))) return;
  Json to = {{"rope_type", scaling}, {"factor", factor}};
  if (scaling == "yarn") {
    to["original_max_position_embeddings"] =
        need("rope.scaling.original_context_length", kMaxPositions);
    for (const auto& [from, name] : {std::pair("rope.scaling.yarn_beta_fast", "beta_fast"),
                                     std::pair("rope.scaling.yarn_beta_slow", "beta_slow")}) {
      if (keys_.has(key(from))) to[name] = need_number(from);
    }
    // A factor of 1 in llama.cpp is the factor of YaRN's paper.
    for (const char* name : {"rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor",
                             "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_log_multiplier"}) {
      const bool factor = std::string(name).ends_with("attn_factor");
      if (keys_.has(key(name)) && !(factor && need_number(name) == 1))
        throw Error(ErrorKind::unsupported, keys_.path(), key(name), factor ? "1" : "no such key",
                    fmt::format("{}", need_number(name)));
    }
  }
  c["rope_scaling"] = to;
}

// Adds the types of the layers, if the file states for each whether its attention slides.
void GgufNames::add_layer_types(nlohmann::ordered_json& c) const {
  const char* const name = "attention.sliding_window_pattern";
  const auto layers = c["num_hidden_layers"].get<size_t>();
  const std::vector<double>* const slides =
      keys_.has(key(name)) ? keys_.numbers(key(name)) : nullptr;
  if (slides == nullptr) return;
  if (slides->size() != layers)
    keys_.fail(key(name), std::to_string(layers) + " values", std::to_string(slides->size()));
  c["layer_types"] = Json::array();
  for (const double s : *slides)
    c["layer_types"].push_back(s != 0 ? "sliding_attention" : "full_attention");
}

// Adds the fields that only some architectures have.
void GgufNames::add_own(nlohmann::ordered_json& c) const {
  const std::string name = architecture_.name;
  const auto copy = [&](const char* from, const char* to) {
    if (keys_.has(key(from))) c[to] = published_number(from);
  };
  if (name == "gemma2" || name == "gemma3") {
    // llama.cpp derives the scale of each family's largest model from a head's share of the hidden
    // size.
    const bool largest = c["num_hidden_layers"] == (name == "gemma2" ? 46 : 62);
    c["query_pre_attn_scalar"] =
        largest ? Json(c["hidden_size"].get<int64_t>() / heads_) : c["head_dim"];
    copy("attn_logit_softcapping", "attn_logit_softcapping");
    copy("final_logit_softcapping", "final_logit_softcapping");
  }
  if (name == "gemma4") add_gemma4(c);
  if (name == "gemma3n") add_gemma3n(c);
  if (architecture_.layout == GgufLayout::qwen_hybrid) add_qwen_hybrid(c);
  if (architecture_.layout == GgufLayout::lfm2) add_lfm2(c);
  if (architecture_.layout == GgufLayout::granite_hybrid) add_granite_hybrid(c);
  if (name == "gemma3") {
    c["rope_local_base_freq"] = keys_.number(key("rope.freq_base_swa")).value_or(10000);
    c["sliding_window_pattern"] = 6;
    add_layer_types(c);
  }
  if (name == "gptneox") {
    c["layer_norm_eps"] = published_number("attention.layer_norm_epsilon");
    c["use_parallel_residual"] = keys_.boolean(key("use_parallel_residual")).value_or(true);
    c["hidden_act"] = "gelu";
    c["attention_bias"] = find("blk.0.attn_qkv.bias") != nullptr;
    add_rotary_part(c, "rotary_pct");
  }
  if (name == "phi3") {
    c["attention_bias"] = false;
    add_rotary_part(c, "partial_rotary_factor");
    add_long_factors(c);
  }
  if (name == "llama" && is_mistral(keys_)) {
    c["architectures"] = {"MistralForCausalLM"};
    c["model_type"] = "mistral";
    if (!c.contains("sliding_window")) c["sliding_window"] = nullptr;
  }
  if (may_have_experts(name)) add_experts(c);
  if (name == "granite" || name == "granitemoe" || name == "granitehybrid") {
    copy("embedding_scale", "embedding_multiplier");
    copy("attention.scale", "attention_multiplier");
    copy("residual_scale", "residual_multiplier");
    copy("logit_scale", "logits_scaling");
    if (architecture_.layout == GgufLayout::llama && !has_rope()) add_granite_without_rope(c);
  }
  // GGUF has no key for YaRN's truncate. A config without rope_scaling would have the published one.
  if (name == "gpt-oss" && !c.contains("rope_scaling"))
    c["rope_scaling"] = nullptr;
  else if (name == "gpt-oss" && c["rope_scaling"]["rope_type"] == "yarn")
    c["rope_scaling"]["truncate"] = false;
  if (name == "olmo2" && c.contains("sliding_window")) {  // llama.cpp uses it for OLMo 3, too
    c["architectures"] = {"Olmo3ForCausalLM"};
    c["model_type"] = "olmo3";
    add_layer_types(c);
  }
}

// Adds the number of experts, and the layers that have an MLP instead.
void GgufNames::add_experts(nlohmann::ordered_json& c) const {
  const std::string name = architecture_.name;
  const int64_t count =
      keys_.integer(key("expert_count"), 0, static_cast<int64_t>(kMostExperts)).value_or(0);
  if (count == 0 && name == "llama") return;
  if (name == "llama") {
    c["architectures"] = {"MixtralForCausalLM"};
    c["model_type"] = "mixtral";
  }
  const bool local = name == "llama" || name == "granitemoe" || name == "gpt-oss";
  c[local ? "num_local_experts" : "num_experts"] =
      need("expert_count", static_cast<int64_t>(kMostExperts));
  c["num_experts_per_tok"] = need("expert_used_count", count);
  const auto width = keys_.integer(key("expert_feed_forward_length"), 1, kMaxSize);
  if (name == "qwen3moe") {
    c["moe_intermediate_size"] = width.value_or(c["intermediate_size"].get<int64_t>());
    c["norm_topk_prob"] = true;
    c["use_sliding_window"] = c.contains("sliding_window") && !c["sliding_window"].is_null();
    c["mlp_only_layers"] = Json::array();
    for (int64_t i = 0; i < c["num_hidden_layers"].get<int64_t>(); ++i) {
      if (find(fmt::format("blk.{}.ffn_gate_inp.weight", i)) == nullptr)
        c["mlp_only_layers"].push_back(i);
    }
    return;
  }
  if (width) c["intermediate_size"] = *width;
  if (name != "olmoe") return;
  c["norm_topk_prob"] = false;
  if (keys_.has(key("attention.clamp_kqv")))
    c["clip_qkv"] = published_number("attention.clamp_kqv");
}

nlohmann::ordered_json GgufNames::config() const {
  Json c = {{"architectures", {architecture_.class_name}},
            {"model_type", architecture_.model_type},
            {"vocab_size", vocab_size_},
            {"tie_word_embeddings", tied()}};
  if (architecture_.layout == GgufLayout::gpt2) {
    c.update(gpt2_config());
  } else {
    c.update(common_config());
    add_own(c);
  }
  c.update(ids_config());
  return c;
}

// Sampling keys of llama.cpp override the generation_config.json that stet stored: a user may have
// edited them.
std::string GgufNames::generation_config() const {
  const std::string kept = keys_.text(kGgufGeneration).value_or("");
  Json g = kept.empty() ? ids_config()
                        : parse_ordered_python_json(kept, keys_.path() + ": " + kGgufGeneration);
  if (!g.is_object()) keys_.fail(kGgufGeneration, "a JSON object", "another value");
  if (!take_sampling_keys(keys_, g) && !kept.empty()) return kept;
  return g.dump(-1, ' ', false, Json::error_handler_t::replace);
}

nlohmann::ordered_json GgufNames::ids_config() const { return gguf_ids_config(keys_, vocab_size_); }

}  // namespace stet
