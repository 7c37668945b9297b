// Shapes and tensors of Gemma 4, whose layers differ.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/checkpoint/checkpoint_shapes.hpp"

namespace stet_tools {

// The names of the shapes.
std::vector<std::string> gemma4_names();
// config.json of a shape. Null for an unknown name.
nlohmann::json gemma4_named_config(const std::string& name);
// Makes the last layer see everything and shares keys and values of fewer layers, in proportion, so
// that a config whose number of layers was changed from `before` stays one of Gemma 4.
void fit_gemma4_layers(nlohmann::json* text, int64_t before);
// All weights that the config describes, in the order of its layers. Errors name `file`.
std::vector<Weight> gemma4_weights(const nlohmann::json& config, const std::string& file);

}  // namespace stet_tools
