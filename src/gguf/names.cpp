#include "src/gguf/names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"
#include "stet/kernels/ggml.hpp"
#include "stet/model/config.hpp"

namespace stet {
namespace {

using Json = nlohmann::ordered_json;

struct Architecture {
  const char* name;
  const char *class_name, *model_type;
  bool rotated, gemma, four_norms;
};
constexpr Architecture kArchitectures[] = {
    {"llama", "LlamaForCausalLM", "llama", true, false, false},
    {"mistral", "MistralForCausalLM", "mistral", true, false, false},
    {"qwen2", "Qwen2ForCausalLM", "qwen2", false, false, false},
    {"qwen3", "Qwen3ForCausalLM", "qwen3", false, false, false},
    {"gemma", "GemmaForCausalLM", "gemma", false, true, false},
    {"gemma2", "Gemma2ForCausalLM", "gemma2", false, true, true},
    {"gemma3", "Gemma3ForCausalLM", "gemma3_text", false, true, true}};

const Architecture& architecture_of(const Gguf& keys) {
  const std::string name = keys.text("general.architecture").value_or("");
  for (const Architecture& a : kArchitectures) {
    if (name == a.name) return a;
  }
  throw Error(ErrorKind::unsupported, keys.path(), "general.architecture",
              "llama, mistral, qwen2, qwen3, gemma, gemma2 or gemma3", printable(name, 60));
}

// rope_freqs: what the frequency of each pair is divided by. Llama 3's scaling makes them from
// three factors and a length; the one that gives these numbers is the one.
Json llama3_scaling(const Gguf& keys, const GgufTensor& tensor, double theta, int64_t head_dim) {
  std::vector<float> divisors(tensor.bytes.size() / sizeof(float));
  if (tensor.type != 0 || divisors.size() != static_cast<size_t>(head_dim / 2))
    keys.fail(tensor.name, std::to_string(head_dim / 2) + " of F32",
              std::to_string(divisors.size()));
  std::memcpy(divisors.data(), tensor.bytes.data(), tensor.bytes.size());
  Rope plain, scaled;
  plain.theta = scaled.theta = theta;
  scaled.scaling = Rope::Scaling::llama3;
  scaled.factor = *std::max_element(divisors.begin(), divisors.end());
  scaled.low_freq_factor = 1;
  scaled.high_freq_factor = 4;
  const std::vector<float> from = inverse_frequencies(plain, head_dim);
  for (int64_t length = 64; length <= 1 << 20; length *= 2) {
    scaled.original_positions = static_cast<decltype(scaled.original_positions)>(length);
    const std::vector<float> to = inverse_frequencies(scaled, head_dim);
    const auto close = [&](size_t i) {
      return std::abs(from[i] / to[i] - divisors[i]) <= 1e-5f * divisors[i];
    };
    size_t i = 0;
    while (i < from.size() && close(i)) ++i;
    if (i == from.size())
      return {{"rope_type", "llama3"},
              {"factor", scaled.factor},
              {"low_freq_factor", 1.0},
              {"high_freq_factor", 4.0},
              {"original_max_position_embeddings", length}};
  }
  throw Error(ErrorKind::unsupported, keys.path(), tensor.name, "Llama 3's scaling of frequencies",
              "another");
}

}  // namespace

GgufNames::GgufNames(const std::vector<Gguf>& parts) : parts_(parts), keys_(parts.front()) {
  architecture_ = architecture_of(keys_).name;
  const GgufTensor* const embedding = find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2)
    keys_.fail("token_embd.weight", "a matrix", embedding == nullptr ? "none" : "another shape");
  vocab_size_ = embedding->shape[0];
  heads_ = need("attention.head_count", kMaxHeads);
  kv_heads_ = keys_.integer(key("attention.head_count_kv"), 1, heads_).value_or(heads_);
}

const GgufTensor* GgufNames::find(const std::string& name) const {
  for (const Gguf& part : parts_) {
    for (const GgufTensor& t : part.tensors()) {
      if (t.name == name) return &t;
    }
  }
  return nullptr;
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

std::string GgufNames::config() const {
  const Architecture& a = architecture_of(keys_);
  const int64_t hidden = need("embedding_length", kMaxSize), layers = need("block_count", 1024),
                head_dim =
                    keys_.integer(key("attention.key_length"), 2, 65536).value_or(hidden / heads_);
  const double theta = keys_.number(key("rope.freq_base")).value_or(10000);
  if (head_dim < 2 || head_dim % 2 != 0)
    keys_.fail(key("attention.key_length"), "an even number", std::to_string(head_dim));
  if (!(theta >= 1 && theta <= 1e12))
    keys_.fail(key("rope.freq_base"), "a number in 1..1e12", fmt::format("{}", theta));
  Json c = {{"architectures", {a.class_name}},
            {"model_type", a.model_type},
            {"vocab_size", vocab_size_},
            {"hidden_size", hidden},
            {"intermediate_size", need("feed_forward_length", kMaxSize)},
            {"num_hidden_layers", layers},
            {"num_attention_heads", heads_},
            {"num_key_value_heads", kv_heads_},
            {"head_dim", head_dim},
            {"max_position_embeddings", need("context_length", kMaxPositions)},
            {"rms_norm_eps", static_cast<float>(need_number("attention.layer_norm_rms_epsilon"))},
            {"rope_theta", theta},
            {"tie_word_embeddings", find("output.weight") == nullptr},
            {"attention_bias", find("blk.0.attn_q.bias") != nullptr}};
  if (std::string(a.model_type).starts_with("qwen")) c.erase("attention_bias");
  // The shortest decimal of the float32 that the file has: what was published.
  c["rms_norm_eps"] = Json::parse(fmt::format("{}", c["rms_norm_eps"].get<float>()));
  if (const GgufTensor* freqs = find("rope_freqs.weight"))
    c["rope_scaling"] = llama3_scaling(keys_, *freqs, theta, head_dim);
  const std::string scaling = keys_.text(key("rope.scaling.type")).value_or("none");
  if (scaling == "linear")
    c["rope_scaling"] = {{"rope_type", "linear"}, {"factor", need_number("rope.scaling.factor")}};
  else if (scaling != "none")
    throw Error(ErrorKind::unsupported, keys_.path(), key("rope.scaling.type"), "none or linear",
                printable(scaling, 40));
  const auto window = keys_.integer(key("attention.sliding_window"), 0, kMaxPositions);
  if (window) c["sliding_window"] = *window;
  if (a.gemma)
    c["hidden_activation"] = "gelu_pytorch_tanh";
  else
    c["hidden_act"] = "silu";
  if (a.four_norms) {
    // As llama.cpp has it: the largest of each family divides by the width of a head of its own.
    const bool largest = layers == (architecture_ == "gemma2" ? 46 : 62);
    c["query_pre_attn_scalar"] = largest ? hidden / heads_ : head_dim;
    for (const auto& [name, to] :
         {std::pair("attn_logit_softcapping", "attn_logit_softcapping"),
          std::pair("final_logit_softcapping", "final_logit_softcapping")}) {
      const auto cap = keys_.number(key(name));
      if (cap) c[to] = *cap;
    }
  }
  if (architecture_ == "gemma3") {
    c["rope_local_base_freq"] = keys_.number(key("rope.freq_base_swa")).value_or(10000);
    c["sliding_window_pattern"] = 6;
    if (const auto* slides = keys_.numbers(key("attention.sliding_window_pattern"))) {
      if (slides->size() != static_cast<size_t>(layers))
        keys_.fail(key("attention.sliding_window_pattern"), std::to_string(layers) + " values",
                   std::to_string(slides->size()));
      c["layer_types"] = Json::array();
      for (const double s : *slides)
        c["layer_types"].push_back(s != 0 ? "sliding_attention" : "full_attention");
    }
  }
  c.update(Json::parse(generation_config()));
  return c.dump();
}

std::string GgufNames::generation_config() const {
  Json g = Json::object();
  const auto id = [&](const char* name) {
    return keys_.integer(std::string("tokenizer.ggml.") + name, 0, vocab_size_ - 1);
  };
  if (const auto bos = id("bos_token_id")) g["bos_token_id"] = *bos;
  Json eos = Json::array();
  for (const char* name : {"eos_token_id", "eot_token_id"}) {
    const auto found = id(name);
    if (found && std::find(eos.begin(), eos.end(), Json(*found)) == eos.end())
      eos.push_back(*found);
  }
  if (!eos.empty()) g["eos_token_id"] = eos;
  return g.dump();
}

std::optional<GgufNames::Published> GgufNames::published(const GgufTensor& t) const {
  const Architecture& a = architecture_of(keys_);
  const auto norm = [&](const std::string& name) { return Published{name, 0, a.gemma}; };
  if (t.name == "rope_freqs.weight") return std::nullopt;
  if (t.name == "token_embd.weight") return Published{"model.embed_tokens.weight"};
  if (t.name == "output.weight") return Published{"lm_head.weight"};
  if (t.name == "output_norm.weight") return norm("model.norm.weight");
  int64_t layer = 0;
  const std::string_view name = t.name;
  if (name.starts_with("blk.")) {
    const char* const begin = t.name.data() + 4;
    const auto [end, error] = std::from_chars(begin, t.name.data() + t.name.size(), layer);
    const std::string_view rest = name.substr(static_cast<size_t>(end - t.name.data()));
    const std::string at = fmt::format("model.layers.{}.", layer);
    static constexpr std::pair<const char*, const char*> kLinears[] = {
        {".attn_output", "self_attn.o_proj"},
        {".attn_v", "self_attn.v_proj"},
        {".ffn_gate", "mlp.gate_proj"},
        {".ffn_up", "mlp.up_proj"},
        {".ffn_down", "mlp.down_proj"}};
    for (const char* kind : {".weight", ".bias"}) {
      for (const auto& [from, to] : kLinears) {
        if (error == std::errc() && rest == std::string(from) + kind)
          return Published{at + to + kind};
      }
      for (const auto& [from, to, heads] : {std::tuple(".attn_q", "self_attn.q_proj", heads_),
                                            std::tuple(".attn_k", "self_attn.k_proj", kv_heads_)}) {
        if (error != std::errc() || rest != std::string(from) + kind) continue;
        if (a.rotated && t.shape.front() % (2 * heads) != 0)
          keys_.fail(t.name, "rows of whole heads", std::to_string(t.shape.front()));
        return Published{at + to + kind, a.rotated ? heads : 0};
      }
    }
    for (const auto& [from, to] :
         {std::pair(".attn_norm.weight", "input_layernorm.weight"),
          std::pair(".ffn_norm.weight", a.four_norms ? "pre_feedforward_layernorm.weight"
                                                     : "post_attention_layernorm.weight"),
          std::pair(".post_attention_norm.weight", "post_attention_layernorm.weight"),
          std::pair(".post_ffw_norm.weight", "post_feedforward_layernorm.weight"),
          std::pair(".attn_q_norm.weight", "self_attn.q_norm.weight"),
          std::pair(".attn_k_norm.weight", "self_attn.k_norm.weight")}) {
      if (error == std::errc() && rest == from) return norm(at + to);
    }
  }
  throw Error(ErrorKind::unsupported, keys_.path(), printable(t.name, 80),
              "a tensor of architecture " + architecture_, "another");
}

}  // namespace stet
