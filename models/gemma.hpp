// What the configs of Gemma 1, 2 and 3 share: scaled embeddings, tied to the head; no biases;
// causal attention.
#pragma once

#include "models/family.hpp"

namespace stet {

ModelConfig read_gemma(const JsonReader& json, const char* family, const Defaults& defaults);

// Stored norm weights are offsets from 1.
constexpr float kGemmaNormOffset = 1;

}  // namespace stet
