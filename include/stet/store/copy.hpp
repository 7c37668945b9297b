// States from one store to another.
#pragma once

#include <cstddef>

#include "stet/api.h"
#include "stet/store/store.hpp"

namespace stet {

struct StoreCopy {
  size_t states = 0, blocks = 0;  // copied
  size_t missing_blocks = 0;      // that `from` did not have, or held damaged
  bool whole_history = true;      // else `from` has not all ancestors any more
};
// A state, its ancestors that `to` does not have, and their blocks. Both stores are of one key
// without a salt: an argument Error otherwise. Throws what Store::state throws.
STET_API StoreCopy copy_state(Store& from, Store& to, const Sha256& place);

}  // namespace stet
