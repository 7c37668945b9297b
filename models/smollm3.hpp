// SmolLM 3: Llama's layers. Every fourth layer does not rotate queries and keys (NoPE). Source:
// "SmolLM3: smol, multilingual, long-context reasoner" (Hugging Face, 2025), arXiv 2501.18795 for
// NoPE, and transformers' modeling_smollm3.py.
#pragma once

#include "models/llama.hpp"

namespace stet {

namespace smollm3 {

inline ModelConfig read_config(const JsonReader& json) {
  ModelConfig c =
      read_common(json, "smollm3", {.kv_heads = 4, .max_positions = 32768, .tied_head = true});
  require_activation(json, "hidden_act", {"silu"});
  require_false(json, {"use_sliding_window"});
  c.ropes = {read_rope(json, "", 2000000)};
  const int64_t every = json.integer_or("no_rope_layer_interval", 4, 1, kMaxLayers);
  for (int64_t i = 0; i < c.layers; ++i)
    c.rope_of[static_cast<size_t>(i)] = (i + 1) % every == 0 ? -1 : 0;
  if (!json.has("no_rope_layers")) return c;
  // 1: the layer rotates
  const std::vector<int64_t> rotates = json.integers("no_rope_layers", 0, 1);
  if (rotates.size() != c.rope_of.size()) json.fail("no_rope_layers", "one entry per layer");
  for (size_t i = 0; i < rotates.size(); ++i) c.rope_of[i] = rotates[i] != 0 ? 0 : -1;
  return c;
}

}  // namespace smollm3

inline Family smollm3_family() {
  return {{"SmolLM3ForCausalLM"}, {"smollm3"}, smollm3::read_config,
          "embed_tokens.weight",  {"model."},  llama::load};
}

}  // namespace stet
