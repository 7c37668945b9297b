#include "tools/checkpoint/checkpoint_shapes.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "stet/base/error.hpp"
#include "stet/base/json_reader.hpp"
#include "tools/checkpoint/gemma4_shapes.hpp"
#include "tools/checkpoint/recurrent_shapes.hpp"

namespace stet_tools {
namespace {

using Json = nlohmann::json;

struct Shape {
  const char* name;
  int hidden, intermediate, layers, heads, kv_heads, head_dim, vocab;
  int context;         // max_position_embeddings
  int window;          // sliding_window, or 0
  int query_scalar;    // query_pre_attn_scalar of a Gemma
  double rope_factor;  // "factor" in rope_scaling, or 0
  bool tied;
  Json (*config)(const Shape& shape);  // returns the family's fields other than the sizes
};

Json gemma2_config(const Shape& shape);
Json gemma3_config(const Shape& shape);
Json gpt2_config(const Shape& shape);
Json llama_config(const Shape& shape);
Json mistral_config(const Shape& shape);
Json qwen2_config(const Shape& shape);
Json qwen3_config(const Shape& shape);
Json qwen3_moe_config(const Shape& shape);
Json gpt_oss_config(const Shape& shape);

constexpr Shape kShapes[] = {
    {"gemma2-2b", 2304, 9216, 26, 8, 4, 256, 256000, 8192, 4096, 256, 0, true, gemma2_config},
    {"gemma3-270m", 640, 2048, 18, 4, 1, 256, 262144, 32768, 512, 256, 0, true, gemma3_config},
    {"gemma3-1b", 1152, 6912, 26, 4, 1, 256, 262144, 32768, 512, 256, 0, true, gemma3_config},
    {"gemma3-4b", 2560, 10240, 34, 8, 4, 256, 262208, 131072, 1024, 256, 8, true, gemma3_config},
    {"gemma3-12b", 3840, 15360, 48, 16, 8, 256, 262208, 131072, 1024, 256, 8, true, gemma3_config},
    {"gemma3-27b", 5376, 21504, 62, 32, 16, 128, 262208, 131072, 1024, 168, 8, true, gemma3_config},
    {"gpt2", 768, 3072, 12, 12, 12, 64, 50257, 1024, 0, 0, 0, true, gpt2_config},
    {"gpt-oss-20b", 2880, 2880, 24, 64, 8, 64, 201088, 131072, 128, 0, 0, false, gpt_oss_config},
    {"llama2-7b", 4096, 11008, 32, 32, 32, 128, 32000, 4096, 0, 0, 0, false, llama_config},
    {"llama3.1-8b", 4096, 14336, 32, 32, 8, 128, 128256, 131072, 0, 0, 8, false, llama_config},
    {"llama3.2-1b", 2048, 8192, 16, 32, 8, 64, 128256, 131072, 0, 0, 32, true, llama_config},
    {"llama3.2-3b", 3072, 8192, 28, 24, 8, 128, 128256, 131072, 0, 0, 32, true, llama_config},
    {"llama3.3-70b", 8192, 28672, 80, 64, 8, 128, 128256, 131072, 0, 0, 8, false, llama_config},
    {"mistral-7b", 4096, 14336, 32, 32, 8, 128, 32000, 32768, 4096, 0, 0, false, mistral_config},
    {"qwen2.5-0.5b", 896, 4864, 24, 14, 2, 64, 151936, 32768, 0, 0, 0, true, qwen2_config},
    {"qwen3-0.6b", 1024, 3072, 28, 16, 8, 128, 151936, 40960, 0, 0, 0, true, qwen3_config},
    {"qwen3-30b-a3b", 2048, 6144, 48, 32, 4, 128, 151936, 40960, 0, 0, 0, false, qwen3_moe_config},
};

bool is_llama2(const Shape& shape) { return shape.vocab == 32000; }

const Shape* find_shape(const std::string& name) {
  const auto it = std::find_if(std::begin(kShapes), std::end(kShapes),
                               [&](const Shape& s) { return name == s.name; });
  return it == std::end(kShapes) ? nullptr : it;
}

// Returns the sizes, named as in all families after GPT-2.
Json sizes(const Shape& shape) {
  return {{"attention_dropout", 0.0},
          {"head_dim", shape.head_dim},
          {"hidden_size", shape.hidden},
          {"initializer_range", 0.02},
          {"intermediate_size", shape.intermediate},
          {"max_position_embeddings", shape.context},
          {"num_attention_heads", shape.heads},
          {"num_hidden_layers", shape.layers},
          {"num_key_value_heads", shape.kv_heads},
          {"use_cache", true},
          {"vocab_size", shape.vocab}};
}

Json with_sizes(const Shape& shape, Json config) {
  config.update(sizes(shape));
  return config;
}

Json gemma2_config(const Shape& shape) {
  return with_sizes(shape, {{"architectures", {"Gemma2ForCausalLM"}},
                            {"model_type", "gemma2"},
                            {"attention_bias", false},
                            {"attn_logit_softcapping", 50.0},
                            {"final_logit_softcapping", 30.0},
                            {"cache_implementation", "hybrid"},
                            {"hidden_act", "gelu_pytorch_tanh"},
                            {"hidden_activation", "gelu_pytorch_tanh"},
                            {"bos_token_id", 2},
                            {"eos_token_id", 1},
                            {"pad_token_id", 0},
                            {"query_pre_attn_scalar", shape.query_scalar},
                            {"rms_norm_eps", 1e-6},
                            {"rope_theta", 10000.0},
                            {"sliding_window", shape.window},
                            {"torch_dtype", "bfloat16"}});
}

Json gemma3_config(const Shape& shape) {
  Json config = {
      {"architectures", {"Gemma3ForCausalLM"}},
      {"model_type", "gemma3_text"},
      {"attention_bias", false},
      {"attn_logit_softcapping", nullptr},
      {"final_logit_softcapping", nullptr},
      {"cache_implementation", "hybrid"},
      {"hidden_activation", "gelu_pytorch_tanh"},
      {"bos_token_id", 2},
      {"eos_token_id", {1, 106}},
      {"pad_token_id", 0},
      {"query_pre_attn_scalar", shape.query_scalar},
      {"rms_norm_eps", 1e-6},
      {"rope_local_base_freq", 10000},
      {"rope_theta", 1000000},
      {"rope_scaling", nullptr},
      {"sliding_window", shape.window},
      {"torch_dtype", "bfloat16"},
  };
  if (shape.rope_factor > 0)
    config["rope_scaling"] = {{"factor", shape.rope_factor}, {"rope_type", "linear"}};
  // The config of the 270m, which has 18 layers, is in a later version of the format than the
  // others.
  if (shape.layers == 18) {
    config["_sliding_window_pattern"] = 6;
    for (int i = 1; i <= shape.layers; ++i) {
      config["layer_types"].push_back(i % 6 == 0 ? "full_attention" : "sliding_attention");
    }
  } else {
    config["sliding_window_pattern"] = 6;
  }
  return with_sizes(shape, config);
}

Json gpt2_config(const Shape& shape) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"activation_function", "gelu_new"},
          {"bos_token_id", 50256},
          {"eos_token_id", 50256},
          {"initializer_range", 0.02},
          {"layer_norm_epsilon", 1e-5},
          {"n_ctx", shape.context},
          {"n_embd", shape.hidden},
          {"n_head", shape.heads},
          {"n_layer", shape.layers},
          {"n_positions", shape.context},
          {"torch_dtype", "float32"},
          {"vocab_size", shape.vocab}};
}

Json llama_config(const Shape& shape) {
  const bool old = is_llama2(shape);
  Json config = {
      {"architectures", {"LlamaForCausalLM"}},
      {"model_type", "llama"},
      {"attention_bias", false},
      {"hidden_act", "silu"},
      {"mlp_bias", false},
      {"pretraining_tp", 1},
      {"rms_norm_eps", 1e-5},
      {"rope_theta", old ? 10000.0 : 500000.0},
      {"rope_scaling", nullptr},
      {"tie_word_embeddings", shape.tied},
      {"torch_dtype", old ? "float16" : "bfloat16"},
      {"bos_token_id", old ? 1 : 128000},
      {"eos_token_id", old ? Json(2) : Json({128001, 128008, 128009})},
  };
  if (shape.rope_factor > 0) {
    config["rope_scaling"] = {{"factor", shape.rope_factor},
                              {"low_freq_factor", 1.0},
                              {"high_freq_factor", 4.0},
                              {"original_max_position_embeddings", 8192},
                              {"rope_type", "llama3"}};
  }
  return with_sizes(shape, config);
}

Json mistral_config(const Shape& shape) {
  return with_sizes(shape, {{"architectures", {"MistralForCausalLM"}},
                            {"model_type", "mistral"},
                            {"bos_token_id", 1},
                            {"eos_token_id", 2},
                            {"hidden_act", "silu"},
                            {"rms_norm_eps", 1e-5},
                            {"rope_theta", 10000.0},
                            {"sliding_window", shape.window},
                            {"tie_word_embeddings", shape.tied},
                            {"torch_dtype", "bfloat16"}});
}

Json qwen2_config(const Shape& shape) {
  return with_sizes(shape, {{"architectures", {"Qwen2ForCausalLM"}},
                            {"model_type", "qwen2"},
                            {"bos_token_id", 151643},
                            {"eos_token_id", 151643},
                            {"hidden_act", "silu"},
                            {"max_window_layers", shape.layers},
                            {"rms_norm_eps", 1e-6},
                            {"rope_theta", 1000000.0},
                            {"sliding_window", shape.context},
                            {"tie_word_embeddings", shape.tied},
                            {"torch_dtype", "bfloat16"},
                            {"use_sliding_window", false}});
}

Json qwen3_config(const Shape& shape) {
  Json config = qwen2_config(shape);
  config.update({{"architectures", {"Qwen3ForCausalLM"}},
                 {"model_type", "qwen3"},
                 {"attention_bias", false},
                 {"eos_token_id", 151645},
                 {"rope_scaling", nullptr},
                 {"sliding_window", nullptr}});
  return config;
}

Json qwen3_moe_config(const Shape& shape) {
  Json config = qwen3_config(shape);
  config.update({{"architectures", {"Qwen3MoeForCausalLM"}},
                 {"model_type", "qwen3_moe"},
                 {"decoder_sparse_step", 1},
                 {"mlp_only_layers", Json::array()},
                 {"moe_intermediate_size", 768},
                 {"norm_topk_prob", true},
                 {"num_experts", 128},
                 {"num_experts_per_tok", 8}});
  return config;
}

Json gpt_oss_config(const Shape& shape) {
  Json types = Json::array();
  for (int64_t i = 0; i < shape.layers; ++i)
    types.push_back(i % 2 == 0 ? "sliding_attention" : "full_attention");
  return Json{{"architectures", {"GptOssForCausalLM"}},
              {"model_type", "gpt_oss"},
              {"vocab_size", shape.vocab},
              {"hidden_size", shape.hidden},
              {"intermediate_size", shape.intermediate},
              {"num_hidden_layers", shape.layers},
              {"num_attention_heads", shape.heads},
              {"num_key_value_heads", shape.kv_heads},
              {"head_dim", shape.head_dim},
              {"max_position_embeddings", shape.context},
              {"attention_bias", true},
              {"eos_token_id", 200002},
              {"hidden_act", "silu"},
              {"layer_types", types},
              {"num_experts_per_tok", 4},
              {"num_local_experts", 32},
              {"quantization_config", {{"quant_method", "mxfp4"}}},
              {"rms_norm_eps", 1e-5},
              {"rope_scaling",
               {{"beta_fast", 32.0},
                {"beta_slow", 1.0},
                {"factor", 32.0},
                {"original_max_position_embeddings", 4096},
                {"rope_type", "yarn"},
                {"truncate", false}}},
              {"rope_theta", 150000},
              {"sliding_window", shape.window},
              {"swiglu_limit", 7.0},
              {"tie_word_embeddings", shape.tied},
              {"torch_dtype", "bfloat16"}};
}

// The differences between families in names and sizes of weights, and the defaults of their
// configs.
struct Family {
  const char* model_type;
  const char* prefix;  // prefix of every tensor's name
  bool four_norms;     // norms after attention and MLP as well, as in Gemma 2 and 3
  bool qk_norm;
  bool qkv_bias;     // regardless of attention_bias
  float norm_mean;   // the weight of a norm that only normalizes: Gemma stores weight - 1
  bool tied;         // the default of tie_word_embeddings
  int64_t head_dim;  // 0: hidden_size / num_attention_heads
  int64_t heads, kv_heads, vocab;  // 0: required in the config (kv_heads: equal to heads)
};

constexpr Family kFamilies[] = {
    {"gemma", "", false, false, false, 0, true, 256, 0, 0, 0},
    {"gemma2", "", true, false, false, 0, true, 256, 8, 4, 256000},
    {"gemma3", "language_model.", true, true, false, 0, true, 256, 8, 4, 262208},
    {"gemma3_text", "", true, true, false, 0, true, 256, 8, 4, 262208},
    {"gpt2", "", false, false, true, 1, true, 0, 0, 0, 0},
    {"gpt_oss", "", false, false, false, 1, false, 0, 0, 0, 0},
    {"llama", "", false, false, false, 1, false, 0, 0, 0, 0},
    {"mistral", "", false, false, false, 1, false, 0, 0, 0, 0},
    {"qwen2", "", false, false, true, 1, false, 0, 0, 0, 0},
    {"qwen3", "", false, true, false, 1, false, 128, 0, 0, 0},
    {"qwen3_moe", "", false, true, false, 1, false, 0, 0, 0, 0},
};

const Family& family_of(const stet::JsonReader& config) {
  const std::string type = config.string("model_type");
  std::string known;
  for (const Family& family : kFamilies) {
    if (type == family.model_type) return family;
    known += std::string(known.empty() ? "" : ", ") + family.model_type;
  }
  throw stet::Error(stet::ErrorKind::unsupported, config.file(), "model_type", "one of " + known,
                    type);
}

stet::JsonReader reader_of(const Json& config, const std::string& file) {
  return stet::parse_json(config.dump(), file);
}

// Returns the part of a config that describes the language model.
Json& text_part(Json& config) {
  return config.contains("text_config") && config["text_config"].is_object() ? config["text_config"]
                                                                             : config;
}

int64_t integer(const stet::JsonReader& config, const char* name, int64_t fallback, int64_t max) {
  return fallback > 0 ? config.integer_or(name, fallback, 1, max) : config.integer(name, 1, max);
}

class WeightList {
 public:
  explicit WeightList(const Family& family) : family_(family) {}

  // Adds a matrix [outputs, inputs] with a deviation that keeps the variance of activations.
  void linear(const std::string& name, int64_t outputs, int64_t inputs, bool bias) {
    const float deviation = 1.0f / std::sqrt(static_cast<float>(inputs));
    add(name + ".weight", {outputs, inputs}, {0, deviation});
    if (bias) add(name + ".bias", {outputs}, {0, 0.02f});
  }
  // Adds a matrix in the layout of GPT-2's Conv1D: [inputs, outputs].
  void transposed(const std::string& name, int64_t outputs, int64_t inputs) {
    add(name + ".weight", {inputs, outputs}, {0, 1.0f / std::sqrt(static_cast<float>(inputs))});
    add(name + ".bias", {outputs}, {0, 0.02f});
  }
  void embedding(const std::string& name, int64_t vocab, int64_t hidden) {
    add(name + ".weight", {vocab, hidden}, {0, 0.02f});
  }
  void norm(const std::string& name, int64_t size) {
    add(name + ".weight", {size}, {family_.norm_mean, 0.1f});
  }
  void layer_norm(const std::string& name, int64_t size) {
    norm(name, size);
    add(name + ".bias", {size}, {0, 0.02f});
  }

  void numbers(const std::string& name, int64_t size) { add(name, {size}, {0, 1}); }
  // Adds matrices [experts, outputs, inputs] in MXFP4, as codes and exponents, and biases [experts,
  // outputs]. The root mean square of the codes' values is 2.93.
  void mxfp4(const std::string& name, int64_t experts, int64_t outputs, int64_t inputs) {
    const double scale = 1 / (2.93 * std::sqrt(static_cast<double>(inputs)));
    const auto exponent = static_cast<unsigned>(std::lround(127 + std::log2(scale)));
    add(name + "_blocks", {experts, outputs, inputs / 32, 16}, {});
    weights_.back().bytes = {0, 256};
    add(name + "_scales", {experts, outputs, inputs / 32}, {});
    weights_.back().bytes = {exponent - 1, 3};
    add(name + "_bias", {experts, outputs}, {0, 0.02f});
  }

  std::vector<Weight> take() { return std::move(weights_); }

 private:
  void add(const std::string& name, std::vector<int64_t> shape, Distribution distribution) {
    weights_.push_back({family_.prefix + name, std::move(shape), distribution});
  }

  const Family& family_;
  std::vector<Weight> weights_;
};

constexpr int64_t kMaxSize = 1 << 20, kMaxLayers = 1024;

std::vector<Weight> gpt2_weights(const stet::JsonReader& config, const Family& family) {
  const int64_t hidden = config.integer("n_embd", 1, kMaxSize);
  const int64_t inner = config.integer_or("n_inner", 4 * hidden, 1, 4 * kMaxSize);
  const int64_t layers = config.integer("n_layer", 1, kMaxLayers);
  WeightList list(family);
  list.embedding("wte", config.integer("vocab_size", 1, 1 << 24), hidden);
  list.embedding("wpe", config.integer_or("n_positions", 1024, 1, kMaxSize), hidden);
  for (int64_t i = 0; i < layers; ++i) {
    const std::string layer = "h." + std::to_string(i) + ".";
    list.layer_norm(layer + "ln_1", hidden);
    list.transposed(layer + "attn.c_attn", 3 * hidden, hidden);
    list.transposed(layer + "attn.c_proj", hidden, hidden);
    list.layer_norm(layer + "ln_2", hidden);
    list.transposed(layer + "mlp.c_fc", inner, hidden);
    list.transposed(layer + "mlp.c_proj", hidden, inner);
  }
  list.layer_norm("ln_f", hidden);
  return list.take();
}

}  // namespace

std::vector<std::string> shape_names() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.push_back(shape.name);
  for (const std::vector<std::string>& others : {gemma4_names(), recurrent_names()})
    names.insert(names.end(), others.begin(), others.end());
  return names;
}

Json named_config(const std::string& name) {
  const Shape* shape = find_shape(name);
  if (shape != nullptr) return shape->config(*shape);
  const Json gemma4 = gemma4_named_config(name);
  return gemma4.is_null() ? recurrent_named_config(name) : gemma4;
}

Json generation_config(const std::string& name, const Json& config) {
  Json result = Json::object();
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (config.contains(key)) result[key] = config[key];
  }
  const Shape* shape = find_shape(name);
  if (name.starts_with("gemma4-"))
    result.update({{"do_sample", true}, {"temperature", 1.0}, {"top_k", 64}, {"top_p", 0.95}});
  if (shape == nullptr) return result;
  if (shape->config == gemma3_config) {
    result.update(
        {{"do_sample", true}, {"cache_implementation", "hybrid"}, {"top_k", 64}, {"top_p", 0.95}});
  } else if (shape->config == llama_config) {
    result.update({{"do_sample", true}, {"temperature", 0.6}, {"top_p", 0.9}});
  } else if (shape->config == qwen3_config || shape->config == qwen3_moe_config) {
    result.update({{"do_sample", true}, {"temperature", 0.6}, {"top_k", 20}, {"top_p", 0.95}});
  }
  return result;
}

void set_layers(Json* config, int64_t layers, const std::string& file) {
  Json& text = text_part(*config);
  const int64_t before = text.value("num_hidden_layers", layers);
  text[text.contains("n_layer") ? "n_layer" : "num_hidden_layers"] = layers;
  const auto types = text.find("layer_types");
  if (types == text.end() || !types->is_array()) return;
  if (types->size() < static_cast<size_t>(layers)) {
    throw stet::Error(stet::ErrorKind::argument, file, "layer_types",
                      std::to_string(layers) + " layers", std::to_string(types->size()));
  }
  types->erase(types->begin() + layers, types->end());
  if (text.value("model_type", "") == "gemma4_text") fit_gemma4_layers(&text, before);
}

stet::DType weight_dtype(const Json& config, const std::string& file) {
  const stet::JsonReader reader = reader_of(config, file);
  const char* key = reader.has("dtype") ? "dtype" : "torch_dtype";
  const std::string name = reader.string_or(key, "bfloat16");
  if (name == "bfloat16") return stet::DType::bf16;
  if (name == "float16") return stet::DType::f16;
  if (name == "float32") return stet::DType::f32;
  reader.fail(key, "bfloat16, float16 or float32");
}

void set_weight_dtype(Json* config, stet::DType dtype) {
  const char* name = dtype == stet::DType::f32   ? "float32"
                     : dtype == stet::DType::f16 ? "float16"
                                                 : "bfloat16";
  for (Json* part : {config, &text_part(*config)}) {
    for (const char* key : {"dtype", "torch_dtype"}) {
      if (part->contains(key)) (*part)[key] = name;
    }
  }
  if (!config->contains("dtype")) (*config)["torch_dtype"] = name;
}

namespace {

// Returns true if a layer of Qwen 3's mixtures has experts.
bool is_sparse_layer(const stet::JsonReader& config, int64_t layer) {
  const std::vector<int64_t> dense = config.integers("mlp_only_layers", 0, kMaxLayers);
  return (layer + 1) % config.integer_or("decoder_sparse_step", 1, 1, kMaxLayers) == 0 &&
         std::find(dense.begin(), dense.end(), layer) == dense.end();
}

void add_mlp_weights(WeightList& list, const std::string& at, int64_t hidden, int64_t width,
                     bool bias) {
  list.linear(at + "gate_proj", width, hidden, bias);
  list.linear(at + "up_proj", width, hidden, bias);
  list.linear(at + "down_proj", hidden, width, bias);
}

void add_expert_weights(WeightList& list, const stet::JsonReader& config, const std::string& at,
                        int64_t hidden) {
  const int64_t count = config.integer("num_experts", 1, 1024),
                width = config.integer("moe_intermediate_size", 1, kMaxSize);
  list.linear(at + "gate", count, hidden, false);
  for (int64_t i = 0; i < count; ++i)
    add_mlp_weights(list, at + "experts." + std::to_string(i) + ".", hidden, width, false);
}

void add_gpt_oss_experts(WeightList& list, const stet::JsonReader& config, const std::string& at,
                         int64_t hidden, int64_t width) {
  const int64_t count = config.integer("num_local_experts", 1, 1024);
  if (hidden % 32 != 0) config.fail("hidden_size", "a multiple of 32");
  if (width % 32 != 0) config.fail("intermediate_size", "a multiple of 32");
  list.linear(at + "router", count, hidden, true);
  list.mxfp4(at + "experts.gate_up_proj", count, 2 * width, hidden);
  list.mxfp4(at + "experts.down_proj", count, hidden, width);
}

}  // namespace

std::vector<Weight> weights_of(const Json& whole, const std::string& file) {
  if (whole.value("model_type", "") == "gemma4_text") return gemma4_weights(whole, file);
  if (is_recurrent_config(whole)) return recurrent_weights(whole, file);
  const stet::JsonReader top = reader_of(whole, file);
  const Family& family = family_of(top);
  const stet::JsonReader config = top.object("text_config").value_or(top);

  if (std::string(family.model_type) == "gpt2") return gpt2_weights(config, family);
  const int64_t hidden = integer(config, "hidden_size", 0, kMaxSize);
  const int64_t intermediate = integer(config, "intermediate_size", 0, kMaxSize);
  const int64_t layers = integer(config, "num_hidden_layers", 0, kMaxLayers);
  const int64_t vocab = integer(config, "vocab_size", family.vocab, 1 << 24);
  const int64_t heads = integer(config, "num_attention_heads", family.heads, 1024);
  const int64_t kv_heads =
      integer(config, "num_key_value_heads", family.kv_heads > 0 ? family.kv_heads : heads, heads);
  if (heads % kv_heads != 0)
    config.fail("num_key_value_heads", "a divisor of " + std::to_string(heads));
  const int64_t head_dim =
      integer(config, "head_dim", family.head_dim > 0 ? family.head_dim : hidden / heads, 65536);
  const bool attention_bias = config.boolean_or("attention_bias", false);
  const bool qkv_bias = family.qkv_bias || attention_bias;
  const bool mlp_bias = config.boolean_or("mlp_bias", false);
  const bool tied =
      top.boolean_or("tie_word_embeddings", config.boolean_or("tie_word_embeddings", family.tied));

  WeightList list(family);
  list.embedding("model.embed_tokens", vocab, hidden);
  for (int64_t i = 0; i < layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    list.norm(layer + "input_layernorm", hidden);
    list.linear(layer + "self_attn.q_proj", heads * head_dim, hidden, qkv_bias);
    list.linear(layer + "self_attn.k_proj", kv_heads * head_dim, hidden, qkv_bias);
    list.linear(layer + "self_attn.v_proj", kv_heads * head_dim, hidden, qkv_bias);
    list.linear(layer + "self_attn.o_proj", hidden, heads * head_dim, attention_bias);
    if (family.qk_norm) {
      list.norm(layer + "self_attn.q_norm", head_dim);
      list.norm(layer + "self_attn.k_norm", head_dim);
    }
    list.norm(layer + "post_attention_layernorm", hidden);
    if (family.four_norms) list.norm(layer + "pre_feedforward_layernorm", hidden);
    if (std::string(family.model_type) == "gpt_oss") {
      list.numbers(layer + "self_attn.sinks", heads);
      add_gpt_oss_experts(list, config, layer + "mlp.", hidden, intermediate);
    } else if (std::string(family.model_type) == "qwen3_moe" && is_sparse_layer(config, i))
      add_expert_weights(list, config, layer + "mlp.", hidden);
    else
      add_mlp_weights(list, layer + "mlp.", hidden, intermediate, mlp_bias);
    if (family.four_norms) list.norm(layer + "post_feedforward_layernorm", hidden);
  }
  list.norm("model.norm", hidden);
  if (!tied) list.linear("lm_head", vocab, hidden, false);
  return list.take();
}

}  // namespace stet_tools
