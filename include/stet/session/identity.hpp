// What states and blocks of keys and values are called: SHA-256 over all that produced them, so
// that the same name means the same bytes.
//
//   start   SHA-256 of "stet blocks 1\n", contract, u32 version, kv type, u32 version, model
//           texts: u64 length, bytes
//   link    of tokens that fill a block     SHA-256 of 'B', link before, tokens since that link
//           of a prune                      SHA-256 of 'P', link before, u64 count and tokens since
//                                           that link, u64 at, begin and end, u8 shift, removed
//                                           tokens
//           of an intervention              SHA-256 of 'I', link before, u64 count and tokens since
//                                           that link, its JSON (meta.cpp) as a text
//   block   that tokens filled              their link
//           that a prune changed later      SHA-256 of 'T', link of the last such prune, u64 index
//                                           of the block
//           that tokens do not give         SHA-256 of "stet block content 1\n", kv type, u64
//                                           layers, kv_heads and head_dim, bytes
//   state   SHA-256 of "stet state 1\n", start, tokens, prunes, edits, interventions (where there
//           are any), generation state, messages, blocks; for a state that its tokens do not give
//           also the bytes of its last, partial block and logits (src/snapshot/identity.cpp has the
//           order)
//
// Tokens are i32 and integers little-endian. A prune changes the blocks of its range and, where
// positions moved, all behind it. So a name is known before anything
// is computed, does not depend on how tokens were chunked, batched, forked, rewound or restored,
// and can be looked up by whoever has the tokens: a running state's by Session::block_identities(),
// a file's by Snapshot::block_identities(). docs/identity.md says what for.
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
