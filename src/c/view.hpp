// C interface: memory of the library that callers read in place.
#pragma once

#include <memory>

#include "stet/c.h"

struct stet_view {
  std::shared_ptr<const void> memory;
};
