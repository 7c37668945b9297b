// Names of states and of blocks: digests and ids (docs/snapshot-format.md, "The state digest" and
// "The id").
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stet/model/contract.hpp"
#include "stet/session/identity.hpp"
#include "stet/snapshot/file.hpp"
#include "stet/threads/team.hpp"

namespace stet {

inline int threads_or_all(int threads) { return threads > 0 ? threads : default_threads(); }

std::vector<uint64_t> visibility(const KvCache& kv);
// The layer digests of all blocks, one block after the other. What is mapped is looked at first
// (format Error). `threads` 0: all processors.
std::vector<Digest> all_block_digests(const KvCache& kv, int threads);
// All digests but the id.
StateDigests combine_digests(const SnapshotMeta& meta, std::span<const int32_t> tokens,
                             std::span<const uint64_t> visible, const Digest& logits,
                             std::span<const Digest> blocks);

// A state as it was made: of `recipe`, keys, values and logits are not looked at.
struct Lineage {
  const State& recipe;  // Lineage{recipe(), ...}.f() holds it for as long as f runs
  const KvShape& shape;

  int64_t full_blocks() const { return recipe.size() / kBlockPositions; }
  bool replayable() const {
    return recipe.edits.empty() && (recipe.size() == 0 || is_replayable(recipe.origin.contract));
  }
  // Blocks that are named by their bytes, and, last, the partial one of a state that cannot be
  // replayed.
  std::vector<int64_t> blocks_by_content() const;
  // `content`: the hash of each of those.
  std::vector<BlockIdentity> identities(std::span<const Sha256> content) const;
  // `logits`: their SHA-256; looked at where the state cannot be replayed.
  Sha256 id(std::span<const Sha256> content, const Sha256& logits) const;
};

// The hashes of these blocks' bytes.
std::vector<Sha256> block_hashes(const State& state, std::span<const int64_t> blocks, int threads);
// The id of a state with these.
Sha256 state_id(const State& state, std::span<const Sha256> contents);

}  // namespace stet
