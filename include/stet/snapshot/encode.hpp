// Encodes a snapshot as bytes, for storage outside a file. Snapshot::parse reads them.
#pragma once

#include <cstddef>
#include <vector>

#include "stet/api.h"
#include "stet/snapshot/snapshot.hpp"

namespace stet {

// Returns the bytes that Snapshot::save would write, without weights or tokenizer, and sets
// `digests` to the state's digests. Throws what Snapshot::save throws.
STET_API std::vector<std::byte> encode_snapshot(Session& session, const SaveOptions& options,
                                                StateDigests* digests);

}  // namespace stet
