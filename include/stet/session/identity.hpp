// Identities of states and of blocks of keys and values: SHA-256 over everything that determined
// them. Equal identities mean equal bytes. docs/formats.md ("The id") defines the hashed
// bytes, and docs/contracts-and-identity.md the use of identities.
//
// An identity is known before anything is computed. It does not depend on how tokens were chunked,
// batched, forked, rewound or restored. Anyone with the tokens can look it up, for a session by
// Session::block_identities() and for a file by Snapshot::block_identities().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/base/sha256.hpp"
#include "stet/session/state.hpp"

namespace stet {

// The identity of a full block.
struct BlockIdentity {
  Sha256 id;
  bool replayable = true;  // false: the id is a digest of the bytes instead
  bool operator==(const BlockIdentity&) const = default;
};

// Returns the identities of all full blocks in order. Reads the blocks that cannot be replayed,
// with `threads` threads (0: all processors). Throws a format Error if such a block is damaged.
STET_API std::vector<BlockIdentity> block_identities(const State& state, int threads = 0);

// Returns, for each block, whether its tokens determine it. True for all blocks of a state without
// edits. In an edited state, false for blocks that were edited, or computed or changed after an
// edit. The last block may be partial.
STET_API std::vector<bool> replayable_blocks(const State& state);

// Returns the id of a state. Equal ids mean equal continuations with the same tokenizer. Capacity
// and compute options are not part of it.
STET_API Sha256 state_id(const State& state, int threads = 0);

// The first position from which tokens do not determine a state, and the reason.
struct ReplayLimit {
  int64_t position = 0;
  std::string reason;  // "the key of position 70, layer 1, head 0 was set"
};
STET_API std::optional<ReplayLimit> replay_limit(const State& state);  // none: no limit

}  // namespace stet
