// The names of states and of blocks of keys and values: SHA-256 over all that produced them, so
// that the same name means the same bytes. docs/snapshot-format.md ("The id") has the bytes that
// are hashed, docs/identity.md says what the names are for.
//
// A name is known before anything is computed, does not depend on how tokens were chunked, batched,
// forked, rewound or restored, and can be looked up by whoever has the tokens: a running state's by
// Session::block_identities(), a file's by Snapshot::block_identities().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/base/sha256.hpp"
#include "stet/session/state.hpp"

namespace stet {

struct BlockIdentity {
  Sha256 id;
  bool replayable = true;  // its tokens give it; else the id is that of its bytes
  bool operator==(const BlockIdentity&) const = default;
};

// Of every full block, the first first. Blocks that cannot be replayed are read, by `threads` (0:
// all processors) threads: a format Error where they are damaged.
STET_API std::vector<BlockIdentity> block_identities(const State& state, int threads = 0);

// Which blocks, the last one perhaps partial, hold what the tokens give: all of a state without
// edits; of an edited one those that were not edited, nor computed or changed after an edit.
STET_API std::vector<bool> replayable_blocks(const State& state);

// Equal ids: equal continuations, by the same tokenizer. Capacity and how to compute are not part
// of it.
STET_API Sha256 state_id(const State& state, int threads = 0);

// From where on, and why, a state is not what its tokens give.
struct ReplayLimit {
  int64_t position = 0;
  std::string reason;  // "the key of position 70, layer 1, head 0 was set"
};
STET_API std::optional<ReplayLimit> replay_limit(const State& state);  // nothing: all of it is

}  // namespace stet
