// OLMo 3: OLMo 2's layers. Three of four have a sliding window and plain rotary positions. The
// others see all positions, and rope_scaling applies to them only. Source: "Olmo 3" (Ai2, 2025),
// and transformers' modeling_olmo3.py.
#pragma once

#include "models/olmo2.hpp"

namespace stet {

namespace olmo3 {

inline ModelConfig read_config(const JsonReader& json) {
  ModelConfig c = olmo2::read_layers(json, "olmo3");
  c.window = read_windows(json, c.layers, json.integer_or("sliding_window", 4096, 1, kMaxPositions),
                          [](int64_t i) { return (i + 1) % 4 != 0; });
  const Rope full = read_rope(json, "full_attention", 10000);
  Rope sliding;
  sliding.theta = full.theta;
  const auto ropes = json.object("rope_parameters");
  if (ropes && ropes->has_object("sliding_attention"))
    sliding = read_rope(json, "sliding_attention", 10000);
  c.ropes = {full, sliding};
  for (size_t i = 0; i < c.window.size(); ++i) c.rope_of[i] = c.window[i] == 0 ? 0 : 1;
  return c;
}

}  // namespace olmo3

inline Family olmo3_family() {
  return {{"Olmo3ForCausalLM"},  {"olmo3"},  olmo3::read_config,
          "embed_tokens.weight", {"model."}, load_model<olmo2::Olmo2>};
}

}  // namespace stet
