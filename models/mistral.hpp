// Mistral: Llama's layers. 7B v0.1 has a window in every layer; v0.2 and v0.3 have none; Mistral
// Nemo sets its own head_dim. Source: "Mistral 7B", arXiv 2310.06825, and transformers'
// modeling_mistral.py.
#pragma once

#include "models/llama.hpp"

namespace stet {

namespace mistral {

inline ModelConfig read_config(const JsonReader& json) {
  ModelConfig c = read_common(json, "mistral", {.kv_heads = 8, .max_positions = 131072});
  require_false(json, {"attention_bias", "mlp_bias"});
  require_activation(json, "hidden_act", {"silu"});
  c.ropes = {read_rope(json, "", 10000)};
  c.window.assign(c.window.size(), read_sliding_window(json));
  return c;
}

inline std::unique_ptr<Model> load(ModelConfig c, WeightLoader& w) {
  return std::make_unique<Llama>(std::move(c), w);
}

}  // namespace mistral

inline Family mistral_family() {
  return {{"MistralForCausalLM"}, {"mistral"}, mistral::read_config,
          "embed_tokens.weight",  {"model."},  mistral::load};
}

}  // namespace stet
