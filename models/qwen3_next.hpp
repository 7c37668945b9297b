// Qwen3-Next (80B-A3B): the layers of Qwen3.5's mixtures. Published checkpoints pack the projections
// of each key head together; they are unpacked when the checkpoint is opened.
// Source: transformers' modeling_qwen3_next.py.
#pragma once

#include "models/qwen3_5.hpp"

namespace stet {

namespace qwen3_next {

inline ModelConfig read_config(const JsonReader& json) {
  return qwen3_5::read_layers(json, {"qwen3_next", 2, 512, 10, true});
}

}  // namespace qwen3_next

inline Family qwen3_next_family() {
  return {{"Qwen3NextForCausalLM"}, {"qwen3_next"}, qwen3_next::read_config,
          "embed_tokens.weight",    {"model."},     load_model<qwen3_5::Qwen35>};
}

}  // namespace stet
