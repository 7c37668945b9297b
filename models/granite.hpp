// Granite 3, dense: Llama's layers with factors on embeddings, scores, residual additions and
// logits. Source: "Granite 3.0 Language Models" (IBM, 2024), and transformers' modeling_granite.py.
#pragma once

#include "models/llama.hpp"

namespace stet {

namespace granite {

inline void read_factors(const JsonReader& json, ModelConfig* c) {
  c->embedding_scale = json.number_or("embedding_multiplier", 1, 1e-6, 1e6);
  c->attention_scale = json.number_or("attention_multiplier", 1, 1e-6, 1e6);
  c->residual_scale = json.number_or("residual_multiplier", 1, 1e-6, 1e6);
  c->logit_divisor = json.number_or("logits_scaling", 1, 1e-6, 1e6);
}

inline ModelConfig read_config(const JsonReader& json) {
  ModelConfig c = read_common(json, "granite");
  require_activation(json, "hidden_act", {"silu"});
  c.ropes = {read_rope(json, "", 10000)};
  read_factors(json, &c);
  return c;
}

}  // namespace granite

inline Family granite_family() {
  return {{"GraniteForCausalLM"}, {"granite"}, granite::read_config,
          "embed_tokens.weight",  {"model."},  llama::load};
}

}  // namespace stet
