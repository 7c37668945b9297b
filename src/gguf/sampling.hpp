// llama.cpp's keys general.sampling.*, which say what generation_config.json recommends.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "src/gguf/gguf.hpp"
#include "src/gguf/writer.hpp"
#include "stet/model/config.hpp"

namespace stet {

// Writes what the config recommends; nothing where it takes the best token, because llama.cpp draws
// by whatever these keys hold.
void add_sampling_keys(const GenerationConfig& config, GgufKeys& keys);

// Puts the keys of a file into its generation_config.json. A number that this holds already, with
// more digits than a float32, stays. Returns whether anything changed. Throws a format Error,
// naming the key, for a value out of range.
bool take_sampling_keys(const Gguf& keys, nlohmann::ordered_json& config);

}  // namespace stet
