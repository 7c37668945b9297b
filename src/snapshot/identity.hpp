// Computes the digests and ids of states and blocks (docs/formats.md, "The state digest"
// and "The id").
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "stet/model/contract.hpp"
#include "stet/session/identity.hpp"
#include "stet/snapshot/file.hpp"
#include "stet/threads/team.hpp"

namespace stet {

inline int threads_or_all(int threads) { return threads > 0 ? threads : default_threads(); }

std::vector<uint64_t> visibility(const KvCache& kv);
// Returns the layer digests of all blocks, block by block. First verifies mapped blocks and throws
// a format Error for a damaged one. `threads` 0 means all processors.
std::vector<Digest> all_block_digests(const KvCache& kv, int threads);
// Returns all digests except the id.
StateDigests combine_digests(const SnapshotMeta& meta, std::span<const int32_t> tokens,
                             std::span<const uint64_t> visible, const Digest& logits,
                             std::span<const Digest> blocks, std::span<const Digest> arrays);

// The recipe of a state, from which names and ids follow. Keys, values and logits in `recipe` are
// not used.
struct Lineage {
  const State& recipe;  // Lineage{recipe(), ...}.f() keeps it alive while f runs
  const KvShape& shape;

  int64_t full_blocks() const { return recipe.size() / kBlockPositions; }
  bool replayable() const {
    return recipe.edits.empty() && (recipe.size() == 0 || is_replayable(recipe.origin.contract));
  }
  // Returns the blocks that are named by their bytes. If the state cannot be replayed, a partial
  // last block is one of them.
  std::vector<int64_t> blocks_by_content() const;
  // Returns the names of all blocks. `content` has the hash of each block in blocks_by_content().
  std::vector<BlockIdentity> identities(std::span<const Sha256> content) const;
  // Returns the state's id. `logits` is their SHA-256, and `arrays` that of the recurrent arrays, if
  // there are any. Both are used only if the state cannot be replayed.
  Sha256 id(std::span<const Sha256> content, const Sha256& logits,
            const std::optional<Sha256>& arrays = std::nullopt) const;
};

// Returns the SHA-256 of each of these blocks' bytes.
std::vector<Sha256> block_hashes(const State& state, std::span<const int64_t> blocks, int threads);
// Returns the names of anchors at these ascending positions of a recipe without prunes. Anchors that
// are named by their content have recurrent_content() instead.
std::vector<Sha256> anchor_names(const State& recipe, const KvShape& shape,
                                 std::span<const int64_t> positions);
// Returns the SHA-256 of recurrent arrays.
Sha256 recurrent_content(std::span<const float> numbers);
// Returns the id of a state. `contents` has the hash of each block in blocks_by_content().
Sha256 state_id(const State& state, std::span<const Sha256> contents);

}  // namespace stet
