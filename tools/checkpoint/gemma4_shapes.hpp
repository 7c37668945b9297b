// Shapes and tensors of Gemma 4, whose layers differ.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/checkpoint/checkpoint_shapes.hpp"

namespace stet_tools {

// Returns the names of the shapes.
std::vector<std::string> gemma4_names();
// Returns the config.json of a shape, or null for an unknown name.
nlohmann::json gemma4_named_config(const std::string& name);
// Adapts a config of Gemma 4 after its number of layers was changed from `before`. The last layer
// gets full attention, and the proportion of layers that share keys and values stays.
void fit_gemma4_layers(nlohmann::json* text, int64_t before);
// Returns all weights that the config describes, in the order of its layers. Errors name `file`.
std::vector<Weight> gemma4_weights(const nlohmann::json& config, const std::string& file);

}  // namespace stet_tools
