// Copies states between stores.
#pragma once

#include <cstddef>

#include "stet/api.h"
#include "stet/store/store.hpp"

namespace stet {

// The result of copy_state().
struct StoreCopy {
  size_t states = 0, blocks = 0;  // copied; anchors count as blocks
  size_t missing_blocks = 0;      // missing or damaged in `from`
  bool whole_history = true;      // false: `from` no longer has all ancestors
};
// Copies a state, its ancestors that `to` lacks, and their blocks and anchors. Throws an argument
// Error unless both stores have the same key and no salt. Throws what Store::state throws.
STET_API StoreCopy copy_state(Store& from, Store& to, const Sha256& place);

}  // namespace stet
