// What tells a state from others.
#include <algorithm>

#include "src/base/digest_bytes.hpp"
#include "src/snapshot/meta.hpp"
#include "src/snapshot/state.hpp"
#include "stet/base/bytes.hpp"
#include "stet/session/identity.hpp"

namespace stet {

int threads_or_all(int threads) { return threads > 0 ? threads : default_threads(); }

std::vector<uint64_t> visibility(const KvCache& kv) {
  std::vector<uint64_t> bits;
  for (int64_t b = 0; b < blocks_of(kv.size()); ++b) bits.push_back(kv.visible(b));
  return bits;
}

std::vector<Digest> all_block_digests(const KvCache& kv, int threads) {
  const size_t blocks = static_cast<size_t>(blocks_of(kv.size())),
               layers = static_cast<size_t>(kv.shape().layers);
  std::vector<Digest> digests(blocks * layers);
  kv.check_all(threads_or_all(threads));
  run_each(threads_or_all(threads), blocks, [&](size_t b) {
    const std::vector<Digest> of = kv.block_info(static_cast<int64_t>(b)).digests(kv.shape());
    std::copy(of.begin(), of.end(), digests.begin() + static_cast<std::ptrdiff_t>(b * layers));
  });
  return digests;
}

StateDigests combine_digests(const SnapshotMeta& meta, const Digest& tokens,
                             std::span<const uint64_t> visible, const Digest& logits,
                             std::span<const Digest> blocks) {
  StateDigests d;
  d.tokens = tokens;
  d.logits = logits;
  d.kv = digest_of(std::as_bytes(blocks));
  RunningDigest all;
  const auto text = [&](std::string_view piece) { all.add(std::as_bytes(std::span(piece))); };
  text(meta.contract + " " + std::to_string(meta.contract_version) + " " +
       kv_type_name(meta.kv.type) + " " + meta.fingerprints.back().second + " " +
       encode_generation(meta.generation));
  if (!meta.prunes.empty()) {
    text(" ");
    encode_prunes(meta.prunes, text);
  }
  if (!meta.edits.empty()) text(" edits " + encode_edits(meta.edits));
  if (!meta.interventions.empty())
    text(" interventions " + encode_interventions(meta.interventions));
  if (!meta.chat.empty()) text(" " + encode_chat(meta.chat));
  for (const Digest& part : {d.tokens, digest_of(std::as_bytes(visible)), d.logits, d.kv}) {
    ByteWriter w;
    put(w, part);
    all.add(w.data());
  }
  d.state = all.result();
  return d;
}

StateDigests digests_of(Session& session) {
  return with_whole_state(session, [&](const State& state) {
    const int threads = session.compute().threads;
    StateDigests d = combine_digests(
        meta_of(session, nullptr), digest_of_all(state.tokens), visibility(state.kv),
        digest_of(std::as_bytes(session.logits())), all_block_digests(state.kv, threads));
    d.id = state_id(state, threads);
    return d;
  });
}

}  // namespace stet
