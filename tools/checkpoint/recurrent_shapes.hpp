// Shapes and tensors of models with recurrent layers: Qwen3-Next, Qwen3.5, LFM2, Granite 4.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/checkpoint/checkpoint_shapes.hpp"

namespace stet_tools {

// Returns the names of the shapes.
std::vector<std::string> recurrent_names();
// Returns the config.json of a shape, or null for an unknown name.
nlohmann::json recurrent_named_config(const std::string& name);
// Returns whether the config is of one of these families.
bool is_recurrent_config(const nlohmann::json& config);
// Returns all weights that the config describes, in the order of its layers and in the published
// layout. Errors name `file`.
std::vector<Weight> recurrent_weights(const nlohmann::json& config, const std::string& file);

}  // namespace stet_tools
