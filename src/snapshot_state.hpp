// What writing and reading a snapshot have in common.
#pragma once

#include <span>

#include "stet/kv_cache.hpp"
#include "stet/snapshot.hpp"

namespace stet {

inline int64_t used_blocks(int64_t positions) { return (positions + kBlockPositions - 1) / kBlockPositions; }

// The state digest covers, as text: contract and its version, kv type, model fingerprint, generation state; then the
// digests of tokens, visibility, logits and blocks.
StateDigests combine_digests(const SnapshotMeta& meta, std::span<const int32_t> tokens, std::span<const uint64_t> visible,
                             std::span<const float> logits, std::span<const Digest> blocks);

}  // namespace stet
