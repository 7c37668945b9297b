// Weights that were damaged while a model used them.
#pragma once

#include "stet/api.h"
#include "stet/base/error.hpp"

namespace stet {

// A format Error that names the first tensor that is not intact. A pass throws it if a mapped file of
// its model was overwritten or truncated. What the caller asked for is not at fault.
class STET_API DamagedWeights : public Error {
 public:
  explicit DamagedWeights(const Error& what) : Error(what) {}
};

}  // namespace stet
