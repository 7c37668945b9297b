// Keys of models with recurrent layers, in llama.cpp's form and in the published config's.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <algorithm>

#include "src/gguf/names.hpp"
#include "stet/base/limits.hpp"
#include "stet/kernels/router.hpp"

namespace stet {
namespace {

using RecurrentJson = nlohmann::ordered_json;

}  // namespace

// Returns the shape of a tensor, which must be there.
const std::vector<int64_t>& GgufNames::shape_of(const std::string& name) const {
  const GgufTensor* const tensor = find(name);
  if (tensor == nullptr) keys_.fail(name, "a tensor", "nothing");
  return tensor->shape;
}

// Returns the number of a layer that has a tensor of this name, or nothing.
std::optional<int64_t> GgufNames::layer_with(const char* stem) const {
  for (int64_t i = 0; i < need("block_count", kMaxLayers); ++i) {
    if (find(fmt::format("blk.{}.{}", i, stem)) != nullptr) return i;
  }
  return std::nullopt;
}

// Adds the types of layers: those without queries are recurrent. The last blocks of a file may be
// multi-token prediction layers, which are not part of the model. Returns whether any is recurrent;
// the keys of a file without recurrent layers need not describe them.
bool GgufNames::add_recurrent_types(nlohmann::ordered_json& c, const char* recurrent,
                                    const char* attention) const {
  const int64_t blocks = need("block_count", kMaxLayers),
                next = keys_.integer(key("nextn_predict_layers"), 0, blocks - 1).value_or(0);
  c["num_hidden_layers"] = blocks - next;
  c["layer_types"] = RecurrentJson::array();
  for (int64_t i = 0; i < blocks - next; ++i)
    c["layer_types"].push_back(find(fmt::format("blk.{}.attn_q.weight", i)) == nullptr ? recurrent
                                                                                       : attention);
  const auto& types = c["layer_types"];
  return std::ranges::find(types, RecurrentJson(recurrent)) != types.end();
}

void GgufNames::add_delta_net(nlohmann::ordered_json& c) const {
  const int64_t values = need("ssm.time_step_rank", kMaxHeads);
  const int64_t inner = need("ssm.inner_size", kMaxSize);
  if (inner % values != 0)
    keys_.fail(key("ssm.inner_size"), "a multiple of ssm.time_step_rank", std::to_string(inner));
  c["linear_conv_kernel_dim"] = need("ssm.conv_kernel", kMaxTaps);
  c["linear_key_head_dim"] = need("ssm.state_size", kMaxHeadDim);
  c["linear_num_key_heads"] = need("ssm.group_count", kMaxHeads);
  c["linear_num_value_heads"] = values;
  c["linear_value_head_dim"] = inner / values;
}

void GgufNames::add_qwen_hybrid(nlohmann::ordered_json& c) const {
  if (add_recurrent_types(c, "linear_attention", "full_attention")) add_delta_net(c);
  add_rotary_part(c, "partial_rotary_factor");
  const int64_t experts =
      keys_.integer(key("expert_count"), 0, static_cast<int64_t>(kMostExperts)).value_or(0);
  if (experts == 0) return;
  c["num_experts"] = experts;
  c["num_experts_per_tok"] = need("expert_used_count", experts);
  c["norm_topk_prob"] = true;
  c["moe_intermediate_size"] = need("expert_feed_forward_length", kMaxSize);
  c["shared_expert_intermediate_size"] = need("expert_shared_feed_forward_length", kMaxSize);
  if (!c.contains("intermediate_size")) c["intermediate_size"] = c["moe_intermediate_size"];
  c["mlp_only_layers"] = RecurrentJson::array();
  for (int64_t i = 0; i < c["num_hidden_layers"].get<int64_t>(); ++i) {
    if (find(fmt::format("blk.{}.ffn_gate_inp.weight", i)) == nullptr)
      c["mlp_only_layers"].push_back(i);
  }
}

void GgufNames::add_lfm2(nlohmann::ordered_json& c) const {
  const bool convolves = add_recurrent_types(c, "conv", "full_attention");
  c["norm_eps"] = c["rms_norm_eps"];
  c.erase("rms_norm_eps");
  if (convolves) c["conv_L_cache"] = need("shortconv.l_cache", kMaxTaps);
  c["conv_bias"] = layer_with("shortconv.conv.bias").has_value();
  c["block_auto_adjust_ff_dim"] = false;  // feed_forward_length is already the adjusted width
  if (std::string(architecture_.name) != "lfm2moe") return;
  const int64_t experts = need("expert_count", static_cast<int64_t>(kMostExperts));
  c["num_experts"] = experts;
  c["num_experts_per_tok"] = need("expert_used_count", experts);
  c["moe_intermediate_size"] = need("expert_feed_forward_length", kMaxSize);
  const int64_t dense = keys_.integer(key("leading_dense_block_count"), 0, kMaxLayers).value_or(0);
  c["num_dense_layers"] = dense;
  c["norm_topk_prob"] = keys_.boolean(key("expert_weights_norm")).value_or(true);
  // Without experts no tensor tells whether they would have biases, as published ones do.
  c["use_expert_bias"] =
      dense >= c["num_hidden_layers"].get<int64_t>() || layer_with("exp_probs_b.bias").has_value();
  if (keys_.has(key("expert_weights_scale")))
    c["routed_scaling_factor"] = published_number("expert_weights_scale");
}

// Returns whether a Granite rotates queries and keys. llama.cpp uses this key as the switch.
bool GgufNames::has_rope() const {
  return keys_.boolean(key("rope.scaling.finetuned")).value_or(true);
}

// Describes a dense Granite without rotary positions: only Granite 4's config can say so.
void GgufNames::add_granite_without_rope(nlohmann::ordered_json& c) const {
  if (architecture_.name != std::string("granite"))
    keys_.fail(key("rope.scaling.finetuned"), "true", "false");
  c["architectures"] = {"GraniteMoeHybridForCausalLM"};
  c["model_type"] = "granitemoehybrid";
  c["layer_types"] = std::vector<std::string>(c["num_hidden_layers"].get<size_t>(), "attention");
  c["position_embedding_type"] = "nope";
  c["num_local_experts"] = 0;
  c["shared_intermediate_size"] = c["intermediate_size"];
}

void GgufNames::add_granite_hybrid(nlohmann::ordered_json& c) const {
  if (add_recurrent_types(c, "mamba", "attention")) add_mamba(c);
  c["position_embedding_type"] = has_rope() ? "rope" : "nope";
  const int64_t experts =
      keys_.integer(key("expert_count"), 0, static_cast<int64_t>(kMostExperts)).value_or(0);
  c["num_local_experts"] = experts;
  if (experts > 0) {
    c["num_experts_per_tok"] = need("expert_used_count", experts);
    c["intermediate_size"] = shape_of("blk.0.ffn_gate_exps.weight").at(1);
  }
  c["shared_intermediate_size"] =
      shape_of(experts > 0 ? "blk.0.ffn_gate_shexp.weight" : "blk.0.ffn_gate.weight").at(0);
}

void GgufNames::add_mamba(nlohmann::ordered_json& c) const {
  const int64_t heads = need("ssm.time_step_rank", kMaxHeads),
                inner = need("ssm.inner_size", kMaxSize);
  if (inner % heads != 0 || inner % c["hidden_size"].get<int64_t>() != 0)
    keys_.fail(key("ssm.inner_size"), "a multiple of ssm.time_step_rank and embedding_length",
               std::to_string(inner));
  c["mamba_n_heads"] = heads;
  c["mamba_d_head"] = inner / heads;
  c["mamba_expand"] = inner / c["hidden_size"].get<int64_t>();
  c["mamba_d_state"] = need("ssm.state_size", kMaxHeadDim);
  c["mamba_n_groups"] = need("ssm.group_count", heads);
  c["mamba_d_conv"] = need("ssm.conv_kernel", kMaxTaps);
  c["mamba_conv_bias"] = layer_with("ssm_conv1d.bias").has_value();
  c["mamba_proj_bias"] = layer_with("ssm_in.bias").has_value();
}

}  // namespace stet
