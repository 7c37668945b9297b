// Phi 3, 3.5 and Phi-4-mini: Llama's layers with fused tensors (queries, keys and values; gate and
// up) and LongRoPE for long contexts. Source: "Phi-3 Technical Report", arXiv 2404.14219;
// "LongRoPE", arXiv 2402.13753; and transformers' modeling_phi3.py.
#pragma once

#include "models/llama.hpp"

namespace stet {

namespace phi3 {

inline ModelConfig read_config(const JsonReader& json) {
  ModelConfig c = read_common(json, "phi3");
  require_activation(json, "hidden_act", {"silu"});
  require_false(json, {"attention_bias", "mlp_bias"});
  c.norm_eps = json.number_or("rms_norm_eps", 1e-5, 0, 1);
  read_rotary_part(json, 1, &c);
  c.ropes = {read_rope(json, "", 10000, {.others = {"partial_rotary_factor"}})};
  const int64_t window =
      json.has("sliding_window") ? json.integer("sliding_window", 1, int64_t{1} << 32) : 0;
  c.window.assign(static_cast<size_t>(c.layers), window);
  return c;
}

inline std::unique_ptr<Model> load(ModelConfig c, WeightLoader& w) {
  return std::make_unique<Llama>(std::move(c), w, Biases{}, true);
}

}  // namespace phi3

inline Family phi3_family() {
  return {{"Phi3ForCausalLM"},   {"phi3"},   phi3::read_config,
          "embed_tokens.weight", {"model."}, phi3::load};
}

}  // namespace stet
