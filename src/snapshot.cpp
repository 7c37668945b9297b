// Digests of a session's state, and writing it. The format: src/snapshot_format.hpp.
#include "stet/snapshot.hpp"

#include <algorithm>

#include "src/snapshot_format.hpp"
#include "src/snapshot_meta.hpp"
#include "src/snapshot_state.hpp"
#include "stet/bytes.hpp"
#include "stet/error.hpp"
#include "stet/generate.hpp"

namespace stet {
namespace {

std::vector<uint64_t> visibility(const KvCache& kv) {
  std::vector<uint64_t> bits;
  for (int64_t b = 0; b < used_blocks(kv.size()); ++b) bits.push_back(kv.visible(b));
  return bits;
}

std::vector<Digest> block_digests(const Session& session) {
  const KvCache& kv = session.kv();
  std::vector<Digest> digests(static_cast<size_t>(used_blocks(kv.size())));
  run_team(session.compute().threads > 0 ? session.compute().threads : default_threads(), [&](Team team) {
    const Range mine = team.share(digests.size());
    for (size_t b = mine.begin; b < mine.end; ++b) {
      digests[b] = digest_of({kv.block(static_cast<int64_t>(b)), kv.shape().block_bytes()});
    }
  });
  return digests;
}

struct Parts {
  SnapshotMeta meta;
  std::vector<uint64_t> visible;
  std::vector<Digest> blocks;
  std::span<const float> logits;
  StateDigests digests;
};

Parts collect(Session& session, const std::string& tokenizer) {
  Parts p;
  p.logits = session.logits();  // may compute: before anything else is looked at
  p.meta = meta_of(session, tokenizer);
  p.visible = visibility(session.kv());
  p.blocks = block_digests(session);
  p.digests = combine_digests(p.meta, session.tokens(), p.visible, p.logits, p.blocks);
  return p;
}

void write_zeros(AtomicFile& file, uint64_t to) {
  static const std::byte zeros[4096] = {};
  while (file.written() < to) file.write({zeros, static_cast<size_t>(std::min<uint64_t>(4096, to - file.written()))});
}

}  // namespace

StateDigests combine_digests(const SnapshotMeta& meta, std::span<const int32_t> tokens, std::span<const uint64_t> visible,
                             std::span<const float> logits, std::span<const Digest> blocks) {
  StateDigests d;
  d.tokens = digest_of(std::as_bytes(tokens));
  d.logits = digest_of(std::as_bytes(logits));
  d.kv = digest_of(std::as_bytes(blocks));
  ByteWriter w;
  w.text(meta.contract + " " + std::to_string(meta.contract_version) + " " + kv_type_name(meta.kv.type) + " " +
         meta.fingerprints.back().second + " " + encode_generation(meta.generation));
  for (const Digest& part : {d.tokens, digest_of(std::as_bytes(visible)), d.logits, d.kv}) {
    w.u64(part.low);
    w.u64(part.high);
  }
  d.state = digest_of(w.data());
  return d;
}

StateDigests digests_of(Session& session) { return collect(session, "").digests; }

StateDigests Snapshot::save(Session& session, const std::string& tokenizer, const std::string& path) {
  check_generation(session.generation(), session.model().config().vocab_size, session.size(), "");
  const Parts p = collect(session, tokenizer);
  const KvCache& kv = session.kv();
  const std::string meta = encode_meta(p.meta);
  const std::span<const std::byte> contents[] = {
      std::as_bytes(std::span(meta)), std::as_bytes(std::span(session.tokens())), std::as_bytes(std::span(p.visible)),
      std::as_bytes(p.logits),        std::as_bytes(std::span(p.blocks)),         {}};
  std::vector<Section> sections;
  uint64_t end = 0;
  for (size_t i = 0; i < std::size(kSectionNames); ++i) {
    const std::string name = kSectionNames[i];
    const bool is_kv = name == "KV";
    const uint64_t size = is_kv ? kv.shape().block_bytes() * p.blocks.size() : contents[i].size();
    sections.push_back({name, section_offset(name, end), size, is_kv ? p.digests.kv : digest_of(contents[i])});
    end = sections.back().offset + size;
  }
  AtomicFile file(path);
  file.write(encode_front(sections, p.digests.state));
  for (size_t i = 0; i < sections.size(); ++i) {
    write_zeros(file, sections[i].offset);
    file.write(contents[i]);
  }
  for (size_t b = 0; b < p.blocks.size(); ++b) file.write({kv.block(static_cast<int64_t>(b)), kv.shape().block_bytes()});
  file.commit();
  return p.digests;
}

}  // namespace stet
