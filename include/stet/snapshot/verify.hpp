// Proof by recomputation: a state is a function of its tokens, so it can be computed again and
// compared.
#pragma once

#include <optional>
#include <vector>

#include "stet/api.h"
#include "stet/session/session.hpp"
#include "stet/snapshot/compare.hpp"

namespace stet {

// Replay under OpenBLAS does not give the same bits; verify compares within this.
constexpr double kBlasTolerance = 1e-3;

// Which blocks, the last one perhaps partial, the tokens of a snapshot give: all, unless keys or
// values were edited (identity.hpp).
STET_API std::vector<bool> replayable_blocks(const Snapshot& snapshot);

// Replays a snapshot and compares what its tokens give. Returns what differs first in the file.
// With `bisect`, only digests are compared, of one layer of one block each: the file's keys and
// values need not be there (recipe, delta), and the difference is named by block and layer.
STET_API std::optional<Difference> verify(const Snapshot& snapshot,
                                          std::shared_ptr<const Model> model,
                                          const SessionOptions& options, bool bisect,
                                          const Progress& progress = nullptr);

}  // namespace stet
