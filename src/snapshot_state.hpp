// What writing and reading a snapshot have in common.
#pragma once

#include <span>

#include "stet/kv_cache.hpp"
#include "stet/snapshot.hpp"

namespace stet {

// The state digest covers, as text: contract and its version, kv type, model fingerprint, generation state, the log of
// prunes and the messages where there are any; then the digests of tokens, visibility, logits and blocks.
StateDigests combine_digests(const SnapshotMeta& meta, const Digest& tokens, std::span<const uint64_t> visible,
                             const Digest& logits, std::span<const Digest> blocks);

// The layer digests of all blocks, one block after the other. What is mapped is looked at first (format Error).
std::vector<Digest> all_block_digests(const KvCache& kv, int threads);

template <class T>
Digest digest_of_all(const std::vector<T>& values) {
  return digest_of(std::as_bytes(std::span(values)));
}

}  // namespace stet
