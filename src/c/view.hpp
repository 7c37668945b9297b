// Memory of the library that a caller of the C interface reads in place.
#pragma once

#include <memory>

#include "stet/c.h"

struct stet_view {
  std::shared_ptr<const void> memory;
};
