#include "tools/checkpoint/gemma4_shapes.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "stet/model/config.hpp"

namespace stet_tools {
namespace {

using Json = nlohmann::json;

struct Gemma4Shape {
  const char* name;
  int hidden, intermediate, layers, heads, kv_heads;
  int global_kv_heads;  // 0: kv_heads, and values have weights of their own
  int period;           // every period-th layer has full attention
  int window, context;
  int layer_inputs, shared;  // hidden_size_per_layer_input, num_kv_shared_layers
  bool double_wide;
  int experts, chosen, expert_width;  // 0: none
};

constexpr Gemma4Shape kGemma4Shapes[] = {
    {"gemma4-e2b", 1536, 6144, 35, 8, 1, 0, 5, 512, 131072, 256, 20, true, 0, 0, 0},
    {"gemma4-e4b", 2560, 10240, 42, 8, 2, 0, 6, 512, 131072, 256, 18, false, 0, 0, 0},
    {"gemma4-12b", 3840, 15360, 48, 16, 8, 1, 6, 1024, 262144, 0, 0, false, 0, 0, 0},
    {"gemma4-26b-a4b", 2816, 2112, 30, 16, 8, 2, 6, 1024, 262144, 0, 0, false, 128, 8, 704},
    {"gemma4-31b", 5376, 21504, 60, 32, 16, 4, 6, 1024, 262144, 0, 0, false, 0, 0, 0},
};

Json or_null(int value) { return value > 0 ? Json(value) : Json(nullptr); }

Json gemma4_config_of(const Gemma4Shape& s) {
  Json config = {{"architectures", {"Gemma4ForCausalLM"}},
                 {"model_type", "gemma4_text"},
                 {"attention_bias", false},
                 {"attention_dropout", 0.0},
                 {"attention_k_eq_v", s.global_kv_heads > 0},
                 {"bos_token_id", 2},
                 {"dtype", "bfloat16"},
                 {"enable_moe_block", s.experts > 0},
                 {"eos_token_id", 1},
                 {"final_logit_softcapping", 30.0},
                 {"global_head_dim", 512},
                 {"head_dim", 256},
                 {"hidden_activation", "gelu_pytorch_tanh"},
                 {"hidden_size", s.hidden},
                 {"hidden_size_per_layer_input", s.layer_inputs},
                 {"initializer_range", 0.02},
                 {"intermediate_size", s.intermediate},
                 {"max_position_embeddings", s.context},
                 {"moe_intermediate_size", or_null(s.expert_width)},
                 {"num_attention_heads", s.heads},
                 {"num_experts", or_null(s.experts)},
                 {"num_global_key_value_heads", or_null(s.global_kv_heads)},
                 {"num_hidden_layers", s.layers},
                 {"num_key_value_heads", s.kv_heads},
                 {"num_kv_shared_layers", s.shared},
                 {"pad_token_id", 0},
                 {"rms_norm_eps", 1e-6},
                 {"sliding_window", s.window},
                 {"tie_word_embeddings", true},
                 {"top_k_experts", or_null(s.chosen)},
                 {"use_bidirectional_attention", nullptr},
                 {"use_cache", true},
                 {"use_double_wide_mlp", s.double_wide},
                 {"vocab_size", 262144},
                 {"vocab_size_per_layer_input", 262144}};
  config["rope_parameters"] = {
      {"full_attention",
       {{"partial_rotary_factor", 0.25}, {"rope_theta", 1000000.0}, {"rope_type", "proportional"}}},
      {"sliding_attention", {{"rope_theta", 10000.0}, {"rope_type", "default"}}}};
  for (int i = 1; i <= s.layers; ++i)
    config["layer_types"].push_back(i % s.period == 0 ? "full_attention" : "sliding_attention");
  return config;
}

class Gemma4List {
 public:
  void add(const std::string& name, std::vector<int64_t> shape, Distribution distribution) {
    weights_.push_back({"model." + name, std::move(shape), distribution});
  }
  void linear(const std::string& name, int64_t outputs, int64_t inputs) {
    add(name + ".weight", {outputs, inputs}, {0, 1.0f / std::sqrt(static_cast<float>(inputs))});
  }
  void norm(const std::string& name, int64_t size) { add(name + ".weight", {size}, {1, 0.1f}); }
  std::vector<Weight> take() { return std::move(weights_); }

 private:
  std::vector<Weight> weights_;
};

void add_gemma4_layer(const stet::ModelConfig& c, int64_t index, Gemma4List& list) {
  const stet::LayerShape s = c.layer(index);
  const std::string at = "layers." + std::to_string(index) + ".", self = at + "self_attn.";
  const int64_t hidden = c.hidden_size;
  list.norm(at + "input_layernorm", hidden);
  list.linear(self + "q_proj", s.queries(), hidden);
  list.norm(self + "q_norm", s.key_dim);
  if (s.own) {
    list.linear(self + "k_proj", s.keys(), hidden);
    if (!s.values_are_keys) list.linear(self + "v_proj", s.values(), hidden);
    list.norm(self + "k_norm", s.key_dim);
  }
  list.linear(self + "o_proj", hidden, s.output());
  for (const char* name : {"post_attention_layernorm", "pre_feedforward_layernorm"})
    list.norm(at + name, hidden);
  for (const char* name : {"mlp.gate_proj", "mlp.up_proj"})
    list.linear(at + name, s.intermediate, hidden);
  list.linear(at + "mlp.down_proj", hidden, s.intermediate);
  list.norm(at + "post_feedforward_layernorm", hidden);
  list.add(at + "layer_scalar", {1}, {0.8f, 0.1f});
  if (const int64_t count = c.experts.count; count > 0) {
    for (const char* name : {"pre_feedforward_layernorm_2", "post_feedforward_layernorm_1",
                             "post_feedforward_layernorm_2"})
      list.norm(at + name, hidden);
    const auto deviation = [](int64_t inputs) {
      return 1.0f / std::sqrt(static_cast<float>(inputs));
    };
    list.add(at + "router.scale", {hidden}, {1, 0.1f});
    list.linear(at + "router.proj", count, hidden);
    list.add(at + "router.per_expert_scale", {count}, {1, 0.1f});
    list.add(at + "experts.gate_up_proj", {count, 2 * c.experts.width, hidden},
             {0, deviation(hidden)});
    list.add(at + "experts.down_proj", {count, hidden, c.experts.width},
             {0, deviation(c.experts.width)});
  }
  if (c.layer_inputs == 0) return;
  list.linear(at + "per_layer_input_gate", c.layer_inputs, hidden);
  list.linear(at + "per_layer_projection", hidden, c.layer_inputs);
  list.norm(at + "post_per_layer_input_norm", hidden);
}

}  // namespace

std::vector<std::string> gemma4_names() {
  std::vector<std::string> names;
  for (const Gemma4Shape& s : kGemma4Shapes) names.push_back(s.name);
  return names;
}

Json gemma4_named_config(const std::string& name) {
  for (const Gemma4Shape& s : kGemma4Shapes) {
    if (name == s.name) return gemma4_config_of(s);
  }
  return nullptr;
}

void fit_gemma4_layers(Json* text, int64_t before) {
  Json& types = (*text)["layer_types"];
  const auto layers = static_cast<int64_t>(types.size());
  types.back() = "full_attention";
  int64_t shared = text->value("num_kv_shared_layers", int64_t{0}) * layers / before;
  const auto has_before = [&](int64_t first, const char* type) {
    return std::find(types.begin(), types.begin() + first, type) != types.begin() + first;
  };
  while (shared > 0 && !(has_before(layers - shared, "full_attention") &&
                         has_before(layers - shared, "sliding_attention")))
    --shared;
  (*text)["num_kv_shared_layers"] = shared;
}

std::vector<Weight> gemma4_weights(const Json& config, const std::string& file) {
  const stet::ModelConfig c = stet::parse_model_config(config.dump(), file);
  Gemma4List list;
  list.add("embed_tokens.weight", {c.vocab_size, c.hidden_size}, {0, 0.02f});
  if (c.layer_inputs > 0) {
    const int64_t all = c.layers * c.layer_inputs;
    list.add("embed_tokens_per_layer.weight", {c.layer_input_tokens, all}, {0, 0.02f});
    list.linear("per_layer_model_projection", all, c.hidden_size);
    list.norm("per_layer_projection_norm", c.layer_inputs);
  }
  for (int64_t i = 0; i < c.layers; ++i) add_gemma4_layer(c, i, list);
  list.norm("norm", c.hidden_size);
  return list.take();
}

}  // namespace stet_tools
