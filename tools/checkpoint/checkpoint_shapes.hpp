// The tensors of a model, from a config.json or from the name of a published model's shape.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "stet/files/tensor.hpp"
#include "tools/checkpoint/random_weights.hpp"

namespace stet_tools {

std::vector<std::string> shape_names();

// Returns the config.json of a named shape with its publisher's dimensions, or null for an unknown
// name.
nlohmann::json named_config(const std::string& name);

// Returns the generation_config.json for a config: the published one of a named shape, or for an
// empty name the token ids of the config.
nlohmann::json generation_config(const std::string& name, const nlohmann::json& config);

// Changes the number of layers, and layer_types accordingly.
void set_layers(nlohmann::json* config, int64_t layers, const std::string& file);

// Returns the config's type of weights (torch_dtype, or dtype in newer files), by default bf16; and
// sets it.
stet::DType weight_dtype(const nlohmann::json& config, const std::string& file);
void set_weight_dtype(nlohmann::json* config, stet::DType dtype);

struct Weight {
  std::string name;
  std::vector<int64_t> shape;
  Distribution distribution;  // keeps the scale of activations from layer to layer
  Bytes bytes = {};           // if values != 0: a tensor of bytes, whatever the model's type
};

// Returns all weights of the language model that `config` describes, in the order of its layers.
// Errors name `file`.
std::vector<Weight> weights_of(const nlohmann::json& config, const std::string& file);

}  // namespace stet_tools
