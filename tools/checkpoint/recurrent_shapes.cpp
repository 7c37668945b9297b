#include "tools/checkpoint/recurrent_shapes.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "stet/model/config.hpp"

namespace stet_tools {
namespace {

using Json = nlohmann::json;

struct QwenShape {
  const char* name;
  int hidden, intermediate, layers, heads, kv_heads;
  int value_heads;                    // value heads of DeltaNet layers; key heads: 16
  int experts, chosen, expert_width;  // 0: none
  int vocab, context;
  bool tied, next;  // next: Qwen3-Next
};
constexpr QwenShape kQwenShapes[] = {
    {"qwen3.5-0.8b", 1024, 3584, 24, 8, 2, 16, 0, 0, 0, 248320, 262144, true, false},
    {"qwen3.5-2b", 2048, 6144, 24, 8, 2, 16, 0, 0, 0, 248320, 262144, true, false},
    {"qwen3.5-4b", 2560, 9216, 32, 16, 4, 32, 0, 0, 0, 248320, 262144, true, false},
    {"qwen3.5-9b", 4096, 12288, 32, 16, 4, 32, 0, 0, 0, 248320, 262144, false, false},
    {"qwen3.5-35b-a3b", 2048, 0, 40, 16, 2, 32, 256, 8, 512, 248320, 262144, false, false},
    {"qwen3-next-80b", 2048, 5120, 48, 16, 2, 32, 512, 10, 512, 151936, 262144, false, true},
};

struct Lfm2Shape {
  const char* name;
  int hidden, intermediate, layers, heads;
  int experts, chosen, expert_width;  // 0: none
  std::vector<int> full;
};
const Lfm2Shape kLfm2Shapes[] = {
    {"lfm2-350m", 1024, 6656, 16, 16, 0, 0, 0, {2, 5, 8, 10, 12, 14}},
    {"lfm2-1.2b", 2048, 12288, 16, 32, 0, 0, 0, {2, 5, 8, 10, 12, 14}},
    {"lfm2-2.6b", 2048, 16128, 30, 32, 0, 0, 0, {2, 5, 9, 13, 17, 21, 24, 27}},
    {"lfm2-8b-a1b", 2048, 7168, 24, 32, 32, 4, 1792, {2, 6, 10, 14, 18, 21}},
};

struct GraniteShape {
  const char* name;
  int hidden, layers, heads, kv_heads;
  int mamba_heads;  // heads of Mamba layers (64 columns, 128 state rows); 0: none
  int shared_width;
  int experts, chosen, expert_width;  // 0: none
};
constexpr GraniteShape kGraniteShapes[] = {
    {"granite-4-micro", 2560, 40, 40, 8, 0, 8192, 0, 0, 8192},
    {"granite-4-h-micro", 2048, 40, 32, 8, 64, 8192, 0, 0, 8192},
    {"granite-4-h-tiny", 1536, 40, 12, 4, 48, 1024, 64, 6, 512},
    {"granite-4-h-small", 4096, 40, 32, 8, 128, 1536, 72, 10, 768},
};

Json qwen_config(const QwenShape& s) {
  Json c = {{"attention_bias", false},
            {"bos_token_id", nullptr},
            {"eos_token_id", s.next ? 151645 : 248044},
            {"full_attention_interval", 4},
            {"head_dim", 256},
            {"hidden_act", "silu"},
            {"hidden_size", s.hidden},
            {"linear_conv_kernel_dim", 4},
            {"linear_key_head_dim", 128},
            {"linear_num_key_heads", 16},
            {"linear_num_value_heads", s.value_heads},
            {"linear_value_head_dim", 128},
            {"max_position_embeddings", s.context},
            {"num_attention_heads", s.heads},
            {"num_hidden_layers", s.layers},
            {"num_key_value_heads", s.kv_heads},
            {"rms_norm_eps", 1e-6},
            {"tie_word_embeddings", s.tied},
            {"use_cache", true},
            {"vocab_size", s.vocab}};
  if (s.intermediate > 0) c["intermediate_size"] = s.intermediate;
  if (s.experts > 0)
    c.update({{"decoder_sparse_step", 1},
              {"mlp_only_layers", Json::array()},
              {"moe_intermediate_size", s.expert_width},
              {"norm_topk_prob", true},
              {"num_experts", s.experts},
              {"num_experts_per_tok", s.chosen},
              {"shared_expert_intermediate_size", s.expert_width}});
  if (s.next) {
    c.update({{"architectures", {"Qwen3NextForCausalLM"}},
              {"model_type", "qwen3_next"},
              {"partial_rotary_factor", 0.25},
              {"rope_scaling", nullptr},
              {"rope_theta", 10000000},
              {"torch_dtype", "bfloat16"}});
    return c;
  }
  c.update({{"architectures", {s.experts > 0 ? "Qwen3_5MoeForCausalLM" : "Qwen3_5ForCausalLM"}},
            {"model_type", s.experts > 0 ? "qwen3_5_moe_text" : "qwen3_5_text"},
            {"attn_output_gate", true},
            {"dtype", "bfloat16"},
            {"rope_parameters",
             {{"mrope_interleaved", true},
              {"mrope_section", {11, 11, 10}},
              {"partial_rotary_factor", 0.25},
              {"rope_theta", 10000000},
              {"rope_type", "default"}}}});
  for (int i = 1; i <= s.layers; ++i)
    c["layer_types"].push_back(i % 4 == 0 ? "full_attention" : "linear_attention");
  return c;
}

Json lfm2_config(const Lfm2Shape& s) {
  Json c = {{"architectures", {s.experts > 0 ? "Lfm2MoeForCausalLM" : "Lfm2ForCausalLM"}},
            {"model_type", s.experts > 0 ? "lfm2_moe" : "lfm2"},
            {"bos_token_id", 1},
            {"eos_token_id", 7},
            {"pad_token_id", 0},
            {"conv_L_cache", 3},
            {"conv_bias", false},
            {"hidden_size", s.hidden},
            {"max_position_embeddings", 128000},
            {"norm_eps", 1e-5},
            {"num_attention_heads", s.heads},
            {"num_hidden_layers", s.layers},
            {"num_key_value_heads", 8},
            {"rope_theta", 1000000.0},
            {"tie_word_embeddings", true},
            {"torch_dtype", "bfloat16"},
            {"use_cache", true},
            {"vocab_size", 65536}};
  for (int i = 0; i < s.layers; ++i) {
    const bool full = std::find(s.full.begin(), s.full.end(), i) != s.full.end();
    c["layer_types"].push_back(full ? "full_attention" : "conv");
  }
  if (s.experts > 0)
    c.update({{"intermediate_size", s.intermediate},
              {"moe_intermediate_size", s.expert_width},
              {"norm_topk_prob", true},
              {"num_dense_layers", 2},
              {"num_experts", s.experts},
              {"num_experts_per_tok", s.chosen},
              {"routed_scaling_factor", 1.0},
              {"use_expert_bias", true}});
  else
    c.update({{"block_auto_adjust_ff_dim", true},
              {"block_ff_dim", s.intermediate},
              {"block_ffn_dim_multiplier", 1.0},
              {"block_multiple_of", 256}});
  return c;
}

Json granite_config(const GraniteShape& s) {
  Json c = {{"architectures", {"GraniteMoeHybridForCausalLM"}},
            {"model_type", "granitemoehybrid"},
            {"attention_bias", false},
            {"attention_multiplier", s.hidden == 1536 ? 0.0078125 : 0.015625},
            {"bos_token_id", 100257},
            {"eos_token_id", 100257},
            {"pad_token_id", 100256},
            {"embedding_multiplier", 12},
            {"hidden_act", "silu"},
            {"hidden_size", s.hidden},
            {"intermediate_size", s.expert_width},
            {"logits_scaling", s.hidden == 1536 ? 6 : 8},
            {"mamba_conv_bias", true},
            {"mamba_d_conv", 4},
            {"mamba_d_head", 64},
            {"mamba_d_state", 128},
            {"mamba_expand", 2},
            {"mamba_n_groups", 1},
            {"mamba_n_heads", s.mamba_heads > 0 ? s.mamba_heads : 2 * s.hidden / 64},
            {"mamba_proj_bias", false},
            {"max_position_embeddings", 131072},
            {"num_attention_heads", s.heads},
            {"num_experts_per_tok", s.chosen},
            {"num_hidden_layers", s.layers},
            {"num_key_value_heads", s.kv_heads},
            {"num_local_experts", s.experts},
            {"position_embedding_type", s.mamba_heads > 0 ? "nope" : "rope"},
            {"residual_multiplier", 0.22},
            {"rms_norm_eps", 1e-5},
            {"rope_scaling", nullptr},
            {"rope_theta", s.mamba_heads > 0 ? 10000 : 10000000},
            {"shared_intermediate_size", s.shared_width},
            {"tie_word_embeddings", true},
            {"torch_dtype", "bfloat16"},
            {"use_cache", true},
            {"vocab_size", 100352}};
  for (int i = 0; i < s.layers; ++i)
    c["layer_types"].push_back(s.mamba_heads == 0 || i % 10 == 5 ? "attention" : "mamba");
  return c;
}

// Adds tensors in the published layout.
class RecurrentList {
 public:
  explicit RecurrentList(const stet::ModelConfig& c) : c_(c) {}

  void add(const std::string& name, std::vector<int64_t> shape, Distribution distribution) {
    weights_.push_back({"model." + name, std::move(shape), distribution});
  }
  void linear(const std::string& name, int64_t outputs, int64_t inputs) {
    add(name + ".weight", {outputs, inputs}, {0, deviation(inputs)});
  }
  void experts(const std::string& name, int64_t outputs, int64_t inputs) {
    add(name, {c_.experts.count, outputs, inputs}, {0, deviation(inputs)});
  }
  void norm(const std::string& name, int64_t size, float mean = 1) {
    add(name + ".weight", {size}, {mean, 0.1f});
  }
  void mlp(const std::string& at, int64_t width, const char* gate, const char* up,
           const char* down) {
    linear(at + gate, width, c_.hidden_size);
    linear(at + up, width, c_.hidden_size);
    linear(at + down, c_.hidden_size, width);
  }
  void convolution(const std::string& name) {
    const stet::Recurrence& r = c_.recurrence;
    add(name + ".weight", {r.channels, 1, r.taps}, {0, deviation(r.taps)});
    if (r.conv_bias) add(name + ".bias", {r.channels}, {0, 0.02f});
  }
  // Decays between a half and nearly 1, for projections around 0.
  void decays(const std::string& at) {
    add(at + "A_log", {c_.recurrence.heads}, {0, 0.5f});
    add(at + "dt_bias", {c_.recurrence.heads}, {-3, 1});
  }
  void head() {
    if (c_.tied_head) return;
    weights_.push_back(
        {"lm_head.weight", {c_.vocab_size, c_.hidden_size}, {0, deviation(c_.hidden_size)}});
  }
  std::vector<Weight> take() { return std::move(weights_); }

 private:
  static float deviation(int64_t inputs) { return 1.0f / std::sqrt(static_cast<float>(inputs)); }

  const stet::ModelConfig& c_;
  std::vector<Weight> weights_;
};

void add_attention(const stet::ModelConfig& c, const stet::LayerShape& s, const std::string& at,
                   int64_t queries, const char* output, RecurrentList& list) {
  list.linear(at + "q_proj", queries, c.hidden_size);
  list.linear(at + "k_proj", s.keys(), c.hidden_size);
  list.linear(at + "v_proj", s.values(), c.hidden_size);
  list.linear(at + output, c.hidden_size, s.output());
}

void add_qwen_layer(const stet::ModelConfig& c, int64_t index, RecurrentList& list) {
  const stet::LayerShape s = c.layer(index);
  const stet::Recurrence& r = c.recurrence;
  const std::string at = "layers." + std::to_string(index) + ".", mix = at + "linear_attn.",
                    mlp = at + "mlp.";
  list.norm(at + "input_layernorm", c.hidden_size, 0);
  if (!s.recurrent) {
    add_attention(c, s, at + "self_attn.", 2 * s.queries(), "o_proj", list);
    for (const char* name : {"q_norm", "k_norm"})
      list.norm(at + "self_attn." + name, c.head_dim, 0);
  } else {
    if (c.family == "qwen3_next") {
      list.linear(mix + "in_proj_qkvz", r.channels + r.output(), c.hidden_size);
      list.linear(mix + "in_proj_ba", 2 * r.heads, c.hidden_size);
    } else {
      list.linear(mix + "in_proj_qkv", r.channels, c.hidden_size);
      list.linear(mix + "in_proj_z", r.output(), c.hidden_size);
      list.linear(mix + "in_proj_b", r.heads, c.hidden_size);
      list.linear(mix + "in_proj_a", r.heads, c.hidden_size);
    }
    list.convolution(mix + "conv1d");
    list.decays(mix);
    list.norm(mix + "norm", r.value_dim);
    list.linear(mix + "out_proj", c.hidden_size, r.output());
  }
  list.norm(at + "post_attention_layernorm", c.hidden_size, 0);
  if (!c.has_experts(index))
    return list.mlp(mlp, s.intermediate, "gate_proj", "up_proj", "down_proj");
  list.linear(mlp + "gate", c.experts.count, c.hidden_size);
  if (c.family == "qwen3_next") {
    for (int64_t e = 0; e < c.experts.count; ++e)
      list.mlp(mlp + "experts." + std::to_string(e) + ".", c.experts.width, "gate_proj", "up_proj",
               "down_proj");
  } else {
    list.experts(mlp + "experts.gate_up_proj", 2 * c.experts.width, c.hidden_size);
    list.experts(mlp + "experts.down_proj", c.hidden_size, c.experts.width);
  }
  list.mlp(mlp + "shared_expert.", c.experts.shared, "gate_proj", "up_proj", "down_proj");
  list.linear(mlp + "shared_expert_gate", 1, c.hidden_size);
}

void add_lfm2_layer(const stet::ModelConfig& c, int64_t index, RecurrentList& list) {
  const stet::LayerShape s = c.layer(index);
  const std::string at = "layers." + std::to_string(index) + ".", mlp = at + "feed_forward.";
  list.norm(at + "operator_norm", c.hidden_size);
  if (s.recurrent) {
    list.linear(at + "conv.in_proj", 3 * c.hidden_size, c.hidden_size);
    list.convolution(at + "conv.conv");
    list.linear(at + "conv.out_proj", c.hidden_size, c.hidden_size);
  } else {
    add_attention(c, s, at + "self_attn.", s.queries(), "out_proj", list);
    for (const char* name : {"q_layernorm", "k_layernorm"})
      list.norm(at + "self_attn." + name, c.head_dim);
  }
  list.norm(at + "ffn_norm", c.hidden_size);
  if (!c.has_experts(index)) return list.mlp(mlp, s.intermediate, "w1", "w3", "w2");
  list.linear(mlp + "gate", c.experts.count, c.hidden_size);
  if (c.experts.biased) list.add(mlp + "expert_bias", {c.experts.count}, {0, 0.02f});
  for (int64_t e = 0; e < c.experts.count; ++e)
    list.mlp(mlp + "experts." + std::to_string(e) + ".", c.experts.width, "w1", "w3", "w2");
}

void add_granite_layer(const stet::ModelConfig& c, int64_t index, RecurrentList& list) {
  const stet::LayerShape s = c.layer(index);
  const stet::Recurrence& r = c.recurrence;
  const std::string at = "layers." + std::to_string(index) + ".", mamba = at + "mamba.",
                    moe = at + "block_sparse_moe.";
  list.norm(at + "input_layernorm", c.hidden_size);
  if (s.recurrent) {
    list.linear(mamba + "in_proj", r.output() + r.channels + r.heads, c.hidden_size);
    list.convolution(mamba + "conv1d");
    list.decays(mamba);
    list.add(mamba + "D", {r.heads}, {1, 0.1f});
    list.norm(mamba + "norm", r.output());
    list.linear(mamba + "out_proj", c.hidden_size, r.output());
  } else {
    add_attention(c, s, at + "self_attn.", s.queries(), "o_proj", list);
  }
  list.norm(at + "post_attention_layernorm", c.hidden_size);
  if (c.has_experts(index)) {
    list.linear(moe + "router.layer", c.experts.count, c.hidden_size);
    list.experts(moe + "input_linear.weight", 2 * c.experts.width, c.hidden_size);
    list.experts(moe + "output_linear.weight", c.hidden_size, c.experts.width);
  }
  list.linear(at + "shared_mlp.input_linear", 2 * c.intermediate_size, c.hidden_size);
  list.linear(at + "shared_mlp.output_linear", c.hidden_size, c.intermediate_size);
}

}  // namespace

std::vector<std::string> recurrent_names() {
  std::vector<std::string> names;
  for (const QwenShape& s : kQwenShapes) names.push_back(s.name);
  for (const Lfm2Shape& s : kLfm2Shapes) names.push_back(s.name);
  for (const GraniteShape& s : kGraniteShapes) names.push_back(s.name);
  return names;
}

Json recurrent_named_config(const std::string& name) {
  for (const QwenShape& s : kQwenShapes) {
    if (name == s.name) return qwen_config(s);
  }
  for (const Lfm2Shape& s : kLfm2Shapes) {
    if (name == s.name) return lfm2_config(s);
  }
  for (const GraniteShape& s : kGraniteShapes) {
    if (name == s.name) return granite_config(s);
  }
  return nullptr;
}

bool is_recurrent_config(const Json& config) {
  const std::string type = config.value("model_type", "");
  return type == "qwen3_next" || type == "qwen3_5_text" || type == "qwen3_5_moe_text" ||
         type == "lfm2" || type == "lfm2_moe" || type == "granitemoehybrid";
}

std::vector<Weight> recurrent_weights(const Json& config, const std::string& file) {
  const stet::ModelConfig c = stet::parse_model_config(config.dump(), file);
  const bool qwen = c.family.starts_with("qwen"), lfm2 = c.family.starts_with("lfm2");
  RecurrentList list(c);
  list.add("embed_tokens.weight", {c.vocab_size, c.hidden_size}, {0, 0.02f});
  for (int64_t i = 0; i < c.layers; ++i)
    (qwen ? add_qwen_layer : lfm2 ? add_lfm2_layer : add_granite_layer)(c, i, list);
  list.norm(lfm2 ? "embedding_norm" : "norm", c.hidden_size, qwen ? 0.0f : 1.0f);
  list.head();
  return list.take();
}

}  // namespace stet_tools
