// What writing and reading a snapshot have in common.
#pragma once

#include <span>

#include "stet/kv/kv_cache.hpp"
#include "stet/snapshot/snapshot.hpp"

namespace stet {

// The state digest covers, as text: contract and its version, kv type, model fingerprint,
// generation state, the log of prunes and edits and the messages where there are any; then the
// digests of tokens, visibility, logits and blocks.
StateDigests combine_digests(const SnapshotMeta& meta, const Digest& tokens,
                             std::span<const uint64_t> visible, const Digest& logits,
                             std::span<const Digest> blocks);

int threads_or_all(int threads);
std::vector<uint64_t> visibility(const KvCache& kv);

// The layer digests of all blocks, one block after the other. What is mapped is looked at first
// (format Error).
std::vector<Digest> all_block_digests(const KvCache& kv, int threads);

template <class T>
Digest digest_of_all(const std::vector<T>& values) {
  return digest_of(std::as_bytes(std::span(values)));
}

// What reads all blocks of a session, again where a mapped file has changed since the session
// looked at it.
template <class Reads>
StateDigests with_whole_state(Session& session, Reads reads) {
  constexpr int kMostTries = 8;
  for (int tries = 0;; ++tries) {
    const State& state = session.state();  // computes what is missing or damaged
    try {
      return reads(state);
    } catch (const DamagedBlock&) {
      if (tries == kMostTries) throw;
    }
  }
}

}  // namespace stet
