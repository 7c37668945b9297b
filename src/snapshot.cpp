// Digests of a session's state, and writing it. The format: src/snapshot_format.hpp.
#include "stet/snapshot.hpp"

#include <algorithm>
#include <filesystem>

#include "src/planes.hpp"
#include "src/snapshot_format.hpp"
#include "src/snapshot_meta.hpp"
#include "src/snapshot_state.hpp"
#include "stet/archive.hpp"
#include "stet/bytes.hpp"
#include "stet/error.hpp"
#include "stet/generate.hpp"
#include "stet/limits.hpp"
#include "stet/tokenizer.hpp"

namespace stet {
namespace {

int threads_or_all(int threads) { return threads > 0 ? threads : default_threads(); }

std::vector<uint64_t> visibility(const KvCache& kv) {
  std::vector<uint64_t> bits;
  for (int64_t b = 0; b < blocks_of(kv.size()); ++b) bits.push_back(kv.visible(b));
  return bits;
}

}  // namespace

std::vector<Digest> all_block_digests(const KvCache& kv, int threads) {
  const size_t blocks = static_cast<size_t>(blocks_of(kv.size())), layers = static_cast<size_t>(kv.shape().layers);
  std::vector<Digest> digests(blocks * layers);
  kv.check_all(threads_or_all(threads));
  run_each(threads_or_all(threads), blocks, [&](size_t b) {
    const std::vector<Digest> of = kv.block_info(static_cast<int64_t>(b)).digests(kv.shape());
    std::copy(of.begin(), of.end(), digests.begin() + static_cast<std::ptrdiff_t>(b * layers));
  });
  return digests;
}

StateDigests combine_digests(const SnapshotMeta& meta, const Digest& tokens, std::span<const uint64_t> visible,
                             const Digest& logits, std::span<const Digest> blocks) {
  StateDigests d;
  d.tokens = tokens;
  d.logits = logits;
  d.kv = digest_of(std::as_bytes(blocks));
  ByteWriter w;
  w.text(meta.contract + " " + std::to_string(meta.contract_version) + " " + kv_type_name(meta.kv.type) + " " +
         meta.fingerprints.back().second + " " + encode_generation(meta.generation));
  if (!meta.prunes.empty()) w.text(" " + encode_prunes(meta.prunes));
  if (!meta.edits.empty()) w.text(" edits " + encode_edits(meta.edits));
  if (!meta.dialogue.empty()) w.text(" " + encode_dialogue(meta.dialogue));
  for (const Digest& part : {d.tokens, digest_of(std::as_bytes(visible)), d.logits, d.kv}) {
    w.u64(part.low);
    w.u64(part.high);
  }
  d.state = digest_of(w.data());
  return d;
}

// One snapshot on its way into a file.
struct SnapshotWriter {
  SnapshotWriter(const State& s, SnapshotMeta m, const SaveOptions& o) : state(s), meta(std::move(m)), options(o) {
    static const std::vector<float> none;
    const std::vector<float>& logits = state.logits != nullptr ? *state.logits : none;
    visible = visibility(state.kv);
    blocks = all_block_digests(state.kv, options.threads);
    digests = combine_digests(meta, digest_of_all(state.tokens), visible, digest_of_all(logits), blocks);
    meta.form = options.form;
    meta.parent = meta.parent_file = meta.logits = "";
    if (options.form == SnapshotForm::recipe) meta.logits = digest_text(digests.logits);
    else logits_bytes = std::as_bytes(std::span(logits));
    if (options.form == SnapshotForm::delta) {
      meta.parent = digest_text(options.parent->digests().state);
      meta.parent_file = std::filesystem::path(options.parent->path()).filename().string();
    }
    for (int64_t b = 0; b < state.kv.blocks(); ++b) {
      if (is_stored(b)) stored.push_back(b);
    }
    if (options.weights != nullptr) weights.emplace(*options.weights, Model::files_of(*options.weights));
    if (options.tokenizer != nullptr) tokenizer.emplace(*options.tokenizer, Tokenizer::files_of(*options.tokenizer));
    // Without an index a reader expects every block, as it is.
    indexed = options.compress != 0 || static_cast<int64_t>(stored.size()) != state.kv.blocks();
  }

  bool is_stored(int64_t block) const {
    if (options.form == SnapshotForm::recipe) return false;
    if (state.kv.visible(block) == 0) return false;  // zeros
    if (options.form == SnapshotForm::full) return true;
    const size_t layers = static_cast<size_t>(state.kv.shape().layers);
    if (block >= blocks_of(options.parent->meta().positions)) return true;
    const std::span<const Digest> theirs = options.parent->block_digests(block);
    return !std::equal(theirs.begin(), theirs.end(), blocks.begin() + static_cast<std::ptrdiff_t>(block) * static_cast<std::ptrdiff_t>(layers),
                       blocks.begin() + static_cast<std::ptrdiff_t>((static_cast<size_t>(block) + 1) * layers));
  }

  void write(const std::string& path, const Snapshot* like) {
    AtomicFile file(path, options.mode);
    place_sections(like);
    for (size_t i = 0; i + 1 < sections.size(); ++i) {
      pad(file, sections[i].offset);
      if (payloads[i].archive != nullptr) payloads[i].archive->write(file);
      else file.write(payloads[i].bytes);
    }
    Snapshot::Section& kv = sections.back();
    pad(file, kv.offset);
    write_blocks(file);
    kv.size = file.written() - kv.offset;
    kv.digest = digests.kv;
    if (indexed) {
      Snapshot::Section& index = *find("KVINDEX");
      index.digest = digest_of(index_bytes.data());
      file.write_at(index.offset, index_bytes.data());
    }
    const uint64_t required = (options.form != SnapshotForm::full ? kElsewhere : 0) | (options.compress != 0 ? kCompressed : 0) |
                              (meta.edits.empty() ? 0 : kEdited);
    file.write_at(0, encode_front(sections, required, digests.state));
    file.commit();
  }

 private:
  Snapshot::Section* find(const std::string& name) {
    return &*std::find_if(sections.begin(), sections.end(), [&](const auto& s) { return s.name == name; });
  }

  // Where everything will be; only the size of KV is not known yet. Sections of `like` that are not ours come along.
  void place_sections(const Snapshot* like) {
    meta_text = encode_meta(meta);
    if (meta_text.size() > kMaxMetaBytes) {
      throw Error(ErrorKind::capacity, "", "META", "messages, turns and logs of at most " + std::to_string(kMaxMetaBytes) + " bytes", std::to_string(meta_text.size()));
    }
    const auto add = [&](const std::string& name, std::span<const std::byte> bytes, bool must_know) {
      sections.push_back({name, 0, bytes.size(), digest_of(bytes), must_know});
      payloads.push_back({bytes, nullptr});
    };
    const auto add_archive = [&](const std::string& name, const std::optional<ArchiveWriter>& archive) {
      if (!archive) return;
      sections.push_back({name, 0, archive->size(), digest_of(archive->index()), false});
      payloads.push_back({{}, &*archive});
    };
    add("META", std::as_bytes(std::span(meta_text)), true);
    add("TOKENS", std::as_bytes(std::span(state.tokens)), true);
    add("VISIBLE", std::as_bytes(std::span(visible)), true);
    add("LOGITS", logits_bytes, true);
    add("BLOCKS", std::as_bytes(std::span(blocks)), true);
    index_room.resize(stored.size() * kIndexEntry);
    if (indexed) add("KVINDEX", index_room, true);
    add_archive("WEIGHTS", weights);
    add_archive("TOKENIZR", tokenizer);
    for (const Snapshot::Section& s : like != nullptr ? like->sections() : std::vector<Snapshot::Section>()) {
      const bool replaced = (s.name == "WEIGHTS" && weights) || (s.name == "TOKENIZR" && tokenizer);
      if (replaced || (is_known_section(s.name) && !is_archive_section(s.name))) continue;
      sections.push_back({s.name, 0, s.size, s.digest, s.must_know});
      payloads.push_back({like->bytes_.subspan(s.offset, s.size), nullptr});
    }
    add("KV", {}, true);
    uint64_t end = front_bytes(sections.size());
    for (size_t i = 0; i < sections.size(); ++i) {
      const bool no_blocks = sections[i].name == "KV" && stored.empty();  // no page to align
      sections[i].offset = no_blocks ? section_offset("META", end) : section_offset(sections[i].name, end);
      end = sections[i].offset + sections[i].size;
    }
  }

  static void pad(AtomicFile& file, uint64_t to) {
    static const std::byte zeros[4096] = {};
    while (file.written() < to) file.write({zeros, static_cast<size_t>(std::min<uint64_t>(4096, to - file.written()))});
  }

  void note(int64_t block, uint32_t encoding, uint64_t offset, uint64_t size) {
    index_bytes.u32(static_cast<uint32_t>(block));
    index_bytes.u32(encoding);
    index_bytes.u64(offset);
    index_bytes.u64(size);
  }

  void write_blocks(AtomicFile& file) {
    const KvShape& shape = state.kv.shape();
    if (options.compress == 0) {
      uint64_t offset = 0;
      std::vector<std::byte> copy;
      for (const int64_t b : stored) {
        file.write(bytes_to_write(b, copy));
        note(b, kRaw, offset, shape.block_bytes());
        offset += shape.block_bytes();
      }
      return;
    }
    // Some blocks at a time: compressed by all threads, written in order, in memory of constant size.
    const int threads = threads_or_all(options.threads);
    const size_t at_once = static_cast<size_t>(threads) * 4;
    uint64_t offset = 0;
    for (size_t begin = 0; begin < stored.size(); begin += at_once) {
      const size_t count = std::min(at_once, stored.size() - begin);
      std::vector<std::vector<std::byte>> packed = compress(std::span(stored).subspan(begin, count), threads);
      for (size_t i = 0; i < count; ++i) offset = write_packed(file, stored[begin + i], std::move(packed[i]), offset);
    }
  }

  // With planes as they are where a reader would take the block for a bomb (limits.hpp). Returns where the next one begins.
  uint64_t write_packed(AtomicFile& file, int64_t block, std::vector<std::byte> packed, uint64_t offset) {
    expanded += state.kv.shape().block_bytes();
    if (expanded > kExpandedBytes + kExpandedRatio * (offset + packed.size())) {
      std::vector<std::byte> copy;
      packed = compress_planes(bytes_to_write(block, copy), state.kv.shape().element_size(), 0);
    }
    file.write(packed);
    note(block, kPlanes, offset, packed.size());
    return offset + packed.size();
  }

  // Of a block. What lies in a mapped file is judged by a copy, which nobody else can change.
  std::span<const std::byte> bytes_to_write(int64_t block, std::vector<std::byte>& copy) const {
    const KvBlock& info = state.kv.block_info(block);
    const size_t size = state.kv.shape().block_bytes();
    if (info.saved() == nullptr) return {info.data(), size};
    copy.assign(info.data(), info.data() + size);
    if (!info.saved_as(state.kv.shape(), copy.data())) throw DamagedBlock(info.saved()->file, block, 0);
    return copy;
  }

  std::vector<std::vector<std::byte>> compress(std::span<const int64_t> some, int threads) const {
    const KvShape& shape = state.kv.shape();
    std::vector<std::vector<std::byte>> packed(some.size());
    run_each(threads, some.size(), [&](size_t i) {
      std::vector<std::byte> copy;
      packed[i] = compress_planes(bytes_to_write(some[i], copy), shape.element_size(), options.compress);
    });
    return packed;
  }

 public:
  static constexpr size_t kIndexEntry = 24;

  const State& state;
  SnapshotMeta meta;
  const SaveOptions& options;
  std::vector<uint64_t> visible;
  std::vector<Digest> blocks;
  StateDigests digests;
  std::span<const std::byte> logits_bytes;
  std::vector<int64_t> stored;
  bool indexed = false;

 private:
  std::string meta_text;
  std::vector<std::byte> index_room;
  ByteWriter index_bytes;
  uint64_t expanded = 0;  // what the compressed blocks become
  std::vector<Snapshot::Section> sections;
  struct Payload {
    std::span<const std::byte> bytes;
    const ArchiveWriter* archive;  // in place of the bytes
  };
  std::vector<Payload> payloads;
  std::optional<ArchiveWriter> weights, tokenizer;
};

namespace {

StateDigests write_state(const State& state, SnapshotMeta meta, const std::string& path, const SaveOptions& options,
                         const Snapshot* like) {
  if (options.compress < 0 || options.compress > 9) {
    throw Error(ErrorKind::argument, "", "compress", "a level of 0 .. 9", std::to_string(options.compress));
  }
  if (options.compress != 0 && !have_zlib()) {
    throw Error(ErrorKind::unsupported, "", "compress", "none (built without zlib)", "zlib");
  }
  if (options.form == SnapshotForm::delta) {
    if (options.parent == nullptr) throw Error(ErrorKind::argument, path, "parent", "a snapshot", "none");
    if (options.parent->meta().form == SnapshotForm::recipe) {
      throw Error(ErrorKind::argument, options.parent->path(), "parent", "a snapshot with keys and values", "a recipe");
    }
    if (!(options.parent->meta().kv == meta.kv) || options.parent->version() != kSnapshotVersion) {
      throw Error(ErrorKind::mismatch, options.parent->path(), "parent",
                  "a snapshot of format version 2 with keys and values of the same shape", "another");
    }
    options.parent->check_not_needed(path);
  }
  if (options.form == SnapshotForm::recipe && !state.edits.empty()) {
    throw Error(ErrorKind::argument, path, "form", "full or delta (keys or values were edited: they cannot be computed again)", "recipe");
  }
  check_generation(state.generation, meta_vocab(meta), state.size(), "");
  check_dialogue(state.dialogue, state.drawn(), "");
  SnapshotWriter writer(state, std::move(meta), options);
  writer.write(path, like);
  return writer.digests;
}

}  // namespace

namespace {

// What reads all blocks of a session, again where a mapped file has changed since the session looked at it.
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

}  // namespace

StateDigests digests_of(Session& session) {
  return with_whole_state(session, [&](const State& state) {
    return combine_digests(meta_of(session, ""), digest_of_all(state.tokens), visibility(state.kv),
                           digest_of(std::as_bytes(session.logits())), all_block_digests(state.kv, session.compute().threads));
  });
}

StateDigests Snapshot::save(Session& session, const std::string& tokenizer, const std::string& path, const SaveOptions& options) {
  SaveOptions o = options;
  if (o.threads == 0) o.threads = session.compute().threads;
  return with_whole_state(session, [&](const State& state) { return write_state(state, meta_of(session, tokenizer), path, o, nullptr); });
}

StateDigests Snapshot::save(const State& state, const Snapshot& like, const std::string& path, const SaveOptions& options) {
  SnapshotMeta meta = like.meta();
  meta.kv = state.kv.shape();
  meta.capacity = state.kv.capacity();
  meta.positions = state.size();
  meta.generation = state.generation;
  meta.prunes = state.prunes;
  meta.edits = state.edits;
  meta.dialogue = state.dialogue;
  return write_state(state, std::move(meta), path, options, &like);
}

}  // namespace stet
