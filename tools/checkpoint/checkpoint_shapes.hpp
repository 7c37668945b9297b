// Which tensors a model consists of: from a config.json, or for the shapes of published models by
// name.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "stet/files/tensor.hpp"
#include "tools/checkpoint/random_weights.hpp"

namespace stet_tools {

std::vector<std::string> shape_names();

// config.json of a named shape, with the dimensions that its publisher gives. Null for an unknown
// name.
nlohmann::json named_config(const std::string& name);

// generation_config.json to go with a config: what is published with the named shape, or for an
// empty name the token ids that the config has.
nlohmann::json generation_config(const std::string& name, const nlohmann::json& config);

// Changes the number of layers, of layer_types too.
void set_layers(nlohmann::json* config, int64_t layers, const std::string& file);

// The type that the config says the weights are in (torch_dtype, or dtype as newer files have it),
// bf16 when it says nothing; and its change.
stet::DType weight_dtype(const nlohmann::json& config, const std::string& file);
void set_weight_dtype(nlohmann::json* config, stet::DType dtype);

struct Weight {
  std::string name;
  std::vector<int64_t> shape;
  Distribution distribution;  // such that activations keep their scale from layer to layer
  Bytes bytes = {};           // not 0 values: it is of bytes, whatever the type of the others
};

// All weights of the language model that `config` describes, in the order of its layers. Errors
// name `file`.
std::vector<Weight> weights_of(const nlohmann::json& config, const std::string& file);

}  // namespace stet_tools
