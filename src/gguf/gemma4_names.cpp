// The keys of Gemma 4 and 3n: those of layers that differ, in llama.cpp's form and in the published
// config's.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "src/gguf/names.hpp"
#include "stet/base/limits.hpp"
#include "stet/kernels/streams.hpp"

namespace stet {
namespace {

using GemmaJson = nlohmann::ordered_json;

// Returns the part of a normal distribution below `quantile`: the shortest decimal whose quantile it
// is in float32. llama.cpp stores the quantile, the published config the part.
double part_below(double quantile) {
  const double part = std::erfc(-quantile / std::sqrt(2.0)) / 2;
  for (int digits = 1; digits <= 6; ++digits) {
    const double rounded = std::strtod(fmt::format("{:.{}f}", part, digits).c_str(), nullptr);
    if (rounded > 0 && rounded < 1 &&
        std::abs(normal_quantile(rounded) - quantile) <= 3e-7 * std::abs(quantile))
      return rounded;
  }
  return part;
}

}  // namespace

// Returns the key's value for each layer. The file has one number, or one per layer.
std::vector<int64_t> GgufNames::of_layers(const char* name, int64_t min, int64_t max) const {
  const auto layers = static_cast<size_t>(need("block_count", kMaxLayers));
  if (!keys_.has(key(name))) keys_.fail(key(name), "an integer, or one per layer", "nothing");
  const std::vector<double>* const list =
      keys_.is_array(key(name)) ? keys_.numbers(key(name)) : nullptr;
  if (list == nullptr) return std::vector<int64_t>(layers, *keys_.integer(key(name), min, max));
  std::vector<int64_t> all;
  for (const double x : *list) {
    if (!(x >= static_cast<double>(min) && x <= static_cast<double>(max)))
      keys_.fail(key(name), std::to_string(min) + ".." + std::to_string(max), std::to_string(x));
    all.push_back(static_cast<int64_t>(x));
  }
  if (all.size() != layers)
    keys_.fail(key(name), std::to_string(layers) + " values", std::to_string(all.size()));
  return all;
}

// Returns the rotary parameters of both kinds of layers. llama.cpp stores which pairs rotate as
// divisors: 1, or one so large that the pair does not rotate.
nlohmann::ordered_json GgufNames::gemma4_ropes(int64_t full_dim) const {
  GemmaJson full = {{"rope_type", "default"}, {"rope_theta", need_number("rope.freq_base")}};
  if (const GgufTensor* const freqs = find("rope_freqs.weight")) {
    const std::vector<float> divisors = pair_divisors(*freqs, full_dim / 2);
    const auto rotated = std::ranges::count(divisors, 1.0f);
    const auto still = std::ranges::count_if(divisors, [](float d) { return d >= 1e20f; });
    const bool front = std::all_of(divisors.begin(), divisors.begin() + rotated,
                                   [](float d) { return d == 1.0f; });
    if (!front || rotated + still != std::ssize(divisors))
      keys_.fail(freqs->name, "1 for the first pairs and 1e30 for the others", "other numbers");
    full["rope_type"] = "proportional";
    full["partial_rotary_factor"] =
        static_cast<double>(rotated) / static_cast<double>(divisors.size());
  }
  return {{"full_attention", full},
          {"sliding_attention",
           {{"rope_type", "default"}, {"rope_theta", need_number("rope.freq_base_swa")}}}};
}

// Returns for each layer whether it has a window.
const std::vector<double>& GgufNames::sliding_layers() const {
  const std::string name = key("attention.sliding_window_pattern");
  const std::vector<double>* const slides = keys_.is_array(name) ? keys_.numbers(name) : nullptr;
  if (slides == nullptr) keys_.fail(name, "a value for each layer", "nothing");
  return *slides;
}

void GgufNames::add_gemma4(nlohmann::ordered_json& c) const {
  const std::vector<double>& slides = sliding_layers();
  add_layer_types(c);
  const std::vector<int64_t> heads = of_layers("attention.head_count_kv", 1, heads_),
                             widths = of_layers("feed_forward_length", 1, kMaxSize);
  const int64_t full_dim = need("attention.key_length", kMaxHeadDim),
                window_dim = keys_.integer(key("attention.key_length_swa"), 2, kMaxHeadDim)
                                 .value_or(full_dim);
  const auto of_kind = [&](bool slides_too) {
    for (size_t i = 0; i < slides.size(); ++i) {
      if ((slides[i] != 0) == slides_too) return static_cast<int64_t>(i);
    }
    return int64_t{0};
  };
  const auto window_layer = static_cast<size_t>(of_kind(true)),
             full_layer = static_cast<size_t>(of_kind(false));
  const std::string at = "blk." + std::to_string(full_layer) + ".";
  const bool values_are_keys =
      find(at + "attn_v.weight") == nullptr && find(at + "attn_k.weight") != nullptr;
  c["head_dim"] = window_dim;
  c["global_head_dim"] = full_dim;
  c["num_key_value_heads"] = heads[window_layer];
  c["num_global_key_value_heads"] =
      values_are_keys ? GemmaJson(heads[full_layer]) : GemmaJson(nullptr);
  c["attention_k_eq_v"] = values_are_keys;
  c["num_kv_shared_layers"] =
      keys_.integer(key("attention.shared_kv_layers"), 0, kMaxLayers).value_or(0);
  const auto [least, most] = std::ranges::minmax(widths);
  c["intermediate_size"] = least;
  c["use_double_wide_mlp"] = most == 2 * least;
  add_layer_inputs(c);
  add_gemma4_experts(c);
  c.erase("rope_theta");
  require_no_scaling(c, "Gemma 4");
  c.erase("rope_scaling");
  c["rope_parameters"] = gemma4_ropes(full_dim);
  c["hidden_activation"] = "gelu_pytorch_tanh";
  c.erase("hidden_act");
  c["final_logit_softcapping"] = keys_.has(key("final_logit_softcapping"))
                                     ? published_number("final_logit_softcapping")
                                     : GemmaJson(nullptr);
}

void GgufNames::add_gemma4_experts(nlohmann::ordered_json& c) const {
  const auto most = static_cast<int64_t>(kMostExperts);
  const int64_t count = keys_.integer(key("expert_count"), 0, most).value_or(0);
  if (count == 0) return;
  c["enable_moe_block"] = true;
  c["num_experts"] = count;
  c["top_k_experts"] = need("expert_used_count", count);
  c["moe_intermediate_size"] = need("expert_feed_forward_length", kMaxSize);
}

// Adds the layers' inputs beside the residual stream.
void GgufNames::add_layer_inputs(nlohmann::ordered_json& c) const {
  const std::string width_key = key("embedding_length_per_layer_input");
  const int64_t width = keys_.integer(width_key, 0, kMaxSize).value_or(0);
  c["hidden_size_per_layer_input"] = width;
  const GgufTensor* const table = find("per_layer_token_embd.weight");
  if (table == nullptr) return;
  if (width == 0)
    keys_.fail(width_key, "the width of the layers' inputs in " + table->name,
               keys_.has(width_key) ? "0" : "nothing");
  c["vocab_size_per_layer_input"] = table->shape.front();
}

void GgufNames::add_gemma3n(nlohmann::ordered_json& c) const {
  const GgufTensor *const rank = find("blk.0.laurel_l.weight"),
                          *const scale = find("blk.0.altup_correct_scale.weight");
  if (rank == nullptr) keys_.fail("blk.0.laurel_l.weight", "a matrix", "none");
  sliding_layers();
  add_layer_types(c);
  add_layer_inputs(c);
  c["intermediate_size"] = of_layers("feed_forward_length", 1, kMaxSize);
  c["num_kv_shared_layers"] =
      keys_.integer(key("attention.shared_kv_layers"), 0, kMaxLayers).value_or(0);
  c["rope_local_base_freq"] = keys_.number(key("rope.freq_base_swa")).value_or(10000);
  c["laurel_rank"] = rank->shape.front();
  c["altup_num_inputs"] = need("altup.num_inputs", kMaxSize);
  c["altup_active_idx"] = keys_.integer(key("altup.active_idx"), 0, kMaxSize).value_or(0);
  c["altup_correct_scale"] = scale != nullptr;
  c["hidden_activation"] = "gelu_pytorch_tanh";
  c.erase("hidden_act");
  // Without the key llama.cpp caps at the published 30.
  if (keys_.has(key("final_logit_softcapping")))
    c["final_logit_softcapping"] = published_number("final_logit_softcapping");
  const char* const sparsity = "activation_sparsity_scale";
  const std::vector<double>* const quantiles =
      keys_.is_array(key(sparsity)) ? keys_.numbers(key(sparsity)) : nullptr;
  if (quantiles == nullptr) keys_.fail(key(sparsity), "a number for each layer", "nothing");
  c["activation_sparsity_pattern"] = GemmaJson::array();
  // The quantile of 0, where nothing is dropped, is minus infinity.
  for (const double z : *quantiles)
    c["activation_sparsity_pattern"].push_back(std::isfinite(z) && z != 0 ? part_below(z) : 0.0);
}

}  // namespace stet
