// Names of states whose keys and values are not at hand (include/stet/session/identity.hpp).
#pragma once

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "stet/model/contract.hpp"
#include "stet/session/identity.hpp"

namespace stet {

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

std::vector<Sha256> contents_of(const State& state, std::span<const int64_t> blocks, int threads);
Sha256 logits_hash(const State& state);

}  // namespace stet
