// Qwen 2 and 2.5, dense: Llama's layers with biases on queries, keys and values only. Source:
// "Qwen2 Technical Report", arXiv 2407.10671, 2412.15115, and transformers' modeling_qwen2.py.
#pragma once

#include "models/llama.hpp"

namespace stet {

inline ModelConfig read_qwen(const JsonReader& json, const char* family, const Defaults& defaults) {
  ModelConfig c = read_common(json, family, defaults);
  require_false(json, {"mlp_bias"});
  require_activation(json, "hidden_act", {"silu"});
  c.ropes = {read_rope(json, "", 10000)};
  const int64_t window =
      json.boolean_or("use_sliding_window", false) ? read_sliding_window(json) : 0;
  const int64_t first = json.integer_or("max_window_layers", 28, 0, kMaxSize);
  c.window = read_windows(json, c.layers, window, [&](int64_t i) { return i >= first; });
  return c;
}

namespace qwen2 {

inline ModelConfig read_config(const JsonReader& json) {
  ModelConfig c = read_qwen(json, "qwen2", {});
  c.attention_bias = true;  // implied: configs have no field for it
  return c;
}

inline std::unique_ptr<Model> load(ModelConfig c, WeightLoader& w) {
  return std::make_unique<Llama>(std::move(c), w, Biases{.qkv = true});
}

}  // namespace qwen2

inline Family qwen2_family() {
  return {{"Qwen2ForCausalLM"},  {"qwen2"},  qwen2::read_config,
          "embed_tokens.weight", {"model."}, qwen2::load};
}

}  // namespace stet
