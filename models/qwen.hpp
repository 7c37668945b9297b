// What the configs of Qwen 2 and Qwen 3 share: windows that begin at a layer, where they are asked
// for.
#pragma once

#include "models/family.hpp"

namespace stet {

ModelConfig read_qwen(const JsonReader& json, const char* family, const Defaults& defaults);

}  // namespace stet
