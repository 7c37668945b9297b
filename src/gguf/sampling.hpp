// Converts between llama.cpp's keys general.sampling.* and the recommendations of
// generation_config.json.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "src/gguf/gguf.hpp"
#include "src/gguf/writer.hpp"
#include "stet/model/config.hpp"

namespace stet {

// Adds the sampling settings of the config. Adds none if the config decodes greedily, because
// llama.cpp samples whenever these keys are present.
void add_sampling_keys(const GenerationConfig& config, GgufKeys& keys);

// Copies the sampling keys into generation_config.json and returns whether that changed anything. A
// number there that equals the float32 but has more digits stays. Throws a format Error that names
// the key for a value out of range.
bool take_sampling_keys(const Gguf& keys, nlohmann::ordered_json& config);

}  // namespace stet
