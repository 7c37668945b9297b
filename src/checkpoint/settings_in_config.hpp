// Settings of replies in config.json, where older programs wrote them.
#pragma once

#include <string>
#include <vector>

#include "stet/base/json_reader.hpp"

namespace stet {

// Returns the names of those that have another value than transformers' default. stet uses none:
// transformers does only where a checkpoint has no generation_config.json.
std::vector<std::string> settings_in_config(const JsonReader& json);

}  // namespace stet
