// A snapshot as bytes, for whoever keeps it elsewhere than in a file. Snapshot::parse reads them.
#pragma once

#include <cstddef>
#include <vector>

#include "stet/api.h"
#include "stet/snapshot/snapshot.hpp"

namespace stet {

// The bytes of the file that Snapshot::save would write, without weights or a tokenizer, and the
// state's digests. Throws what that does.
STET_API std::vector<std::byte> encode_snapshot(Session& session, const SaveOptions& options,
                                                StateDigests* digests);

}  // namespace stet
