// Writing a snapshot: format version 3. Integers are little-endian; digests are XXH3-128 as two
// u64, low half first; hashes are SHA-256.
//
//   file     = header table { gap section }       a gap is zeros up to where the next section
//                                                 begins
//   header   = 93 'S' 'T' 'E' 'T' 0D 0A 1A
//              u32 format version                 3
//              u32 bytes of this header           192
//              u64 required features              bits that a reader must know
//              u64 optional features              bits that a reader may ignore; none is defined
//              u64 bytes of the file
//              u32 number of sections             at most 256
//              u32 0                              not looked at
//              u64 offset of the table            192
//              digest of the table
//              digest of the state                StateDigests::state
//              hash   id of the state             identity.hpp
//              u64[7] 0                           not looked at, but for the next digest
//              digest of the bytes before it
//   required = 1 not all keys and values are in this file (delta, recipe) | 2 blocks are compressed
//              | 4 keys or values were edited, META says which | 8 kept for interventions
//              | 16 some blocks are without the layers that have a window
//              | 32 frequency_penalty, presence_penalty or logit_bias in META's generation
//   table    = { entry }                          in the order of their offsets
//   entry    = char[8] name                       padded with zero bytes; each name once
//              u64 offset, u64 bytes
//              u32 flags                          bit 0: a reader that does not know the section
//                                                 must refuse the file
//              u32 encoding                       0: bytes as they are
//              digest                             of the section's bytes; for KV: of BLOCKS; for an
//                                                 archive: of its index
//              u64[2] 0                           not looked at
//
//   section  written in this order, each at a multiple of 64 if nothing else is said; those marked
//            ? may be missing
//     META     JSON: form, parent, contract, kv type, model config and fingerprints, tokenizer
//              fingerprint, capacity, generation state (sampling, seed, stops, turns, what an open
//              reply holds back), log of edits, messages
//     TOKENS   i32 per position
//     VISIBLE  u64 per block: bit t is set when position 64 b + t may be attended to
//     PRUNES   ? { u64 at, u64 begin, u64 end, u32 positions (0: keep, 1: shift), u32 0 }   the log
//              of prunes
//     REMOVED  ? i32 per token that shifts took out, in the order of PRUNES
//     LOGITS   f32 [vocab_size], of the last position; empty without positions, and in a recipe
//     BLOCKS   digest [blocks][layers]: of the layer's bytes in the block, the last one with the
//              padding behind them
//     CONTENT  ? hash for each block that tokens do not give, and of the partial one behind them
//              (identity.hpp)
//     KEPT     ? digest of the state; { u64 position, u32 kind (0: logits, 1: hidden state), u32
//              numbers } for each row, in order, up to one whose position is 2^64 - 1; then f32 of
//              each row: logits, or the final norm's output, of positions before the last
//              (KeptLogits). A reader may ignore it, and does where the digest is not that of the
//              header
//     KVINDEX  ? { u32 block, u32 encoding, u64 offset in KV, u64 bytes } for each block that KV
//              holds, in order. Without it KV holds all blocks, one after the other, as they are. A
//              block of which nothing is visible need not be there: it is zero. All others are in a
//              full snapshot's index; one that is not in a delta's is the parent's.
//     WEIGHTS  ? the checkpoint's files, and
//     TOKENIZR ? the tokenizer's: archives (archive.hpp) at multiples of 4096
//     others   ? that this writer does not know, at multiples of 4096, taken over from a file that
//              was converted
//     KV       at a multiple of 65536 (of 64 when it is empty): { block }
//   block    = encoding 0: as in memory (kv_block.hpp), whole 4096-byte pages; slots of positions
//            that do not exist are zero
//            | encoding 1: a byte shuffle: byte i of every element is put into plane i (elements
//              of 4 or 2 bytes: as many planes of equal size); u32 per plane: its bytes in this
//              file; then the planes, each a zlib stream (RFC 1950), or as it is where that is
//              shorter
//            | encoding 2: the layers of which META's config says that they have no window, one
//              behind the other as in memory, and zeros up to a whole page; of the others there
//              are digests alone
//            | encoding 3: a byte shuffle of those bytes
//
// Every byte is covered: header by its own digest, table by the header's, sections by the table's,
// blocks by BLOCKS, and gaps must be zero. The id proves nothing about keys and values that tokens
// give; a reader that needs it proved computes it.
#include "stet/snapshot/snapshot.hpp"

#include <algorithm>
#include <filesystem>

#include "src/snapshot/byte_shuffle.hpp"
#include "src/snapshot/format.hpp"
#include "src/snapshot/identity.hpp"
#include "src/snapshot/kept.hpp"
#include "src/snapshot/meta.hpp"
#include "src/snapshot/state.hpp"
#include "stet/base/bytes.hpp"
#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"
#include "stet/files/archive.hpp"
#include "stet/generate/generate.hpp"
#include "stet/snapshot/encode.hpp"
#include "stet/text/tokenizer.hpp"

namespace stet {

namespace {

// A snapshot's bytes where there is no file. Archives, which are as large as a checkpoint, are
// refused before.
class MemoryFile {
 public:
  void write(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void write_at(uint64_t offset, std::span<const std::byte> bytes) {
    std::copy(bytes.begin(), bytes.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(offset));
  }
  uint64_t written() const { return bytes_.size(); }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

void write_archive(const ArchiveWriter& archive, AtomicFile& file) { archive.write(file); }
void write_archive(const ArchiveWriter&, MemoryFile&) {
  throw Error(ErrorKind::argument, "", "with weights", "a file to write them to", "none");
}

}  // namespace

// One snapshot on its way into a file.
struct SnapshotWriter {
  SnapshotWriter(const State& s, SnapshotMeta m, const SaveOptions& o)
      : state(s), meta(std::move(m)), options(o) {
    static const std::vector<float> none;
    const std::vector<float>& logits = state.logits != nullptr ? *state.logits : none;
    visible = visibility(state.kv);
    blocks = all_block_digests(state.kv, options.threads);
    digests =
        combine_digests(meta, digest_of_all(state.tokens), visible, digest_of_all(logits), blocks);
    const Lineage lineage{state, state.kv.shape()};
    contents = contents_of(state, lineage.blocks_by_content(), options.threads);
    digests.id = lineage.id(contents, lineage.replayable() ? Sha256() : logits_hash(state));
    meta.form = options.form;
    meta.parent = meta.parent_state = meta.parent_file = meta.logits = "";
    if (options.form == SnapshotForm::recipe)
      meta.logits = digest_text(digests.logits);
    else
      logits_bytes = std::as_bytes(std::span(logits));
    if (options.form == SnapshotForm::delta) {
      const StateDigests& parent = options.parent->digests();
      meta.parent = sha256_text(parent.id);
      meta.parent_state = digest_text(parent.state);
      meta.parent_file = std::filesystem::path(options.parent->path()).filename().string();
    }
    for (int64_t b = 0; b < state.kv.blocks(); ++b) {
      if (is_stored(b)) stored.push_back(b);
    }
    if (options.weights_files != nullptr)
      weights.emplace(*options.weights_files, Model::files_of(*options.weights_files));
    if (options.tokenizer_files != nullptr)
      tokenizer.emplace(*options.tokenizer_files, Tokenizer::files_of(*options.tokenizer_files));
    // Without an index a reader expects every block, as it is.
    windowed = std::ranges::any_of(stored, [&](int64_t b) { return !holds_all(b); });
    indexed = options.compress != 0 || windowed ||
              static_cast<int64_t>(stored.size()) != state.kv.blocks();
  }

  bool holds_all(int64_t block) const { return state.kv.block_info(block).holds_all(); }

  bool is_stored(int64_t block) const {
    if (options.form == SnapshotForm::recipe) return false;
    if (state.kv.visible(block) == 0) return false;  // zeros
    if (options.form == SnapshotForm::full) return true;
    const size_t layers = static_cast<size_t>(state.kv.shape().layers);
    if (block >= blocks_of(options.parent->meta().positions)) return true;
    const std::span<const Digest> theirs = options.parent->block_digests(block);
    return !std::equal(
        theirs.begin(), theirs.end(),
        blocks.begin() + static_cast<std::ptrdiff_t>(block) * static_cast<std::ptrdiff_t>(layers),
        blocks.begin() + static_cast<std::ptrdiff_t>((static_cast<size_t>(block) + 1) * layers));
  }

  void write(const std::string& path, const Snapshot* like) {
    AtomicFile file(path, options.mode);
    write_to(file, like);
    file.commit();
  }

  // `file`: an AtomicFile, or a MemoryFile.
  template <class File>
  void write_to(File& file, const Snapshot* like) {
    place_sections(like);
    for (size_t i = 0; i + 1 < sections.size(); ++i) {
      pad(file, sections[i].offset);
      if (payloads[i].archive != nullptr)
        write_archive(*payloads[i].archive, file);
      else
        file.write(payloads[i].bytes);
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
    const uint64_t required =
        (options.form != SnapshotForm::full ? kElsewhere : 0) |
        (options.compress != 0 ? kCompressed : 0) | (meta.edits.empty() ? 0 : kEdited) |
        (meta.interventions.empty() ? 0 : kIntervened) | (windowed ? kWindowed : 0) |
        (meta.generation.sampling.weighs_tokens() ? kWeighsTokens : 0);
    file.write_at(0, encode_front(sections, required, digests.state, digests.id));
  }

 private:
  Snapshot::Section* find(const std::string& name) {
    return &*std::find_if(sections.begin(), sections.end(),
                          [&](const auto& s) { return s.name == name; });
  }

  // Where everything will be; only the size of KV is not known yet. Sections of `like` that are not
  // ours come along.
  void place_sections(const Snapshot* like) {
    meta_text = encode_meta(meta);
    if (meta_text.size() > kMaxMetaBytes) {
      throw Error(
          ErrorKind::capacity, "", "META",
          "messages, turns and edits of at most " + std::to_string(kMaxMetaBytes) + " bytes",
          std::to_string(meta_text.size()));
    }
    const auto add = [&](const std::string& name, std::span<const std::byte> bytes,
                         bool must_know) {
      sections.push_back({name, 0, bytes.size(), digest_of(bytes), must_know});
      payloads.push_back({bytes, nullptr});
    };
    const auto add_archive = [&](const std::string& name,
                                 const std::optional<ArchiveWriter>& archive) {
      if (!archive) return;
      sections.push_back({name, 0, archive->size(), digest_of(archive->index()), false});
      payloads.push_back({{}, &*archive});
    };
    add("META", std::as_bytes(std::span(meta_text)), true);
    add("TOKENS", std::as_bytes(std::span(state.tokens)), true);
    add("VISIBLE", std::as_bytes(std::span(visible)), true);
    encode_prunes(state.prunes, prune_bytes, removed_bytes);
    if (prune_bytes.size() > 0) add("PRUNES", prune_bytes.data(), true);
    if (removed_bytes.size() > 0) add("REMOVED", removed_bytes.data(), true);
    add("LOGITS", logits_bytes, true);
    add("BLOCKS", std::as_bytes(std::span(blocks)), true);
    if (!contents.empty()) add("CONTENT", std::as_bytes(std::span(contents)), true);
    kept_bytes = encode_kept(state, digests.state);
    if (!kept_bytes.empty()) add("KEPT", kept_bytes, false);
    index_room.resize(stored.size() * kIndexEntry);
    if (indexed) add("KVINDEX", index_room, true);
    add_archive("WEIGHTS", weights);
    add_archive("TOKENIZR", tokenizer);
    for (const Snapshot::Section& s :
         like != nullptr ? like->sections() : std::vector<Snapshot::Section>()) {
      const bool replaced = (s.name == "WEIGHTS" && weights) || (s.name == "TOKENIZR" && tokenizer);
      if (replaced || (is_known_section(s.name) && !is_archive_section(s.name))) continue;
      sections.push_back({s.name, 0, s.size, s.digest, s.must_know});
      payloads.push_back({like->bytes_.subspan(s.offset, s.size), nullptr});
    }
    add("KV", {}, true);
    uint64_t end = front_bytes(sections.size());
    for (size_t i = 0; i < sections.size(); ++i) {
      const bool no_blocks = sections[i].name == "KV" && stored.empty();  // no page to align
      sections[i].offset =
          no_blocks ? section_offset("META", end) : section_offset(sections[i].name, end);
      end = sections[i].offset + sections[i].size;
    }
  }

  template <class File>
  static void pad(File& file, uint64_t to) {
    static const std::byte zeros[4096] = {};
    while (file.written() < to)
      file.write({zeros, static_cast<size_t>(std::min<uint64_t>(4096, to - file.written()))});
  }

  void note(int64_t block, uint32_t encoding, uint64_t offset, uint64_t size) {
    index_bytes.u32(static_cast<uint32_t>(block));
    index_bytes.u32(encoding);
    index_bytes.u64(offset);
    index_bytes.u64(size);
  }

  template <class File>
  void write_blocks(File& file) {
    if (options.compress == 0) {
      uint64_t offset = 0;
      std::vector<std::byte> copy;
      for (const int64_t b : stored) {
        const std::span<const std::byte> bytes = bytes_to_write(b, copy);
        file.write(bytes);
        note(b, holds_all(b) ? kRaw : kHeldRaw, offset, bytes.size());
        offset += bytes.size();
      }
      return;
    }
    // Some blocks at a time: compressed by all threads, written in order, in memory of constant
    // size.
    const int threads = threads_or_all(options.threads);
    const size_t at_once = static_cast<size_t>(threads) * 4;
    uint64_t offset = 0;
    for (size_t begin = 0; begin < stored.size(); begin += at_once) {
      const size_t count = std::min(at_once, stored.size() - begin);
      std::vector<std::vector<std::byte>> packed =
          compress(std::span(stored).subspan(begin, count), threads);
      for (size_t i = 0; i < count; ++i)
        offset = write_packed(file, stored[begin + i], std::move(packed[i]), offset);
    }
  }

  // With planes as they are where a reader would take the block for a bomb (limits.hpp). Returns
  // where the next one begins.
  template <class File>
  uint64_t write_packed(File& file, int64_t block, std::vector<std::byte> packed, uint64_t offset) {
    const bool whole = holds_all(block);
    std::vector<std::byte> some;
    expanded += whole ? state.kv.shape().block_bytes() : bytes_to_write(block, some).size();
    if (!packed.empty() && expanded > kExpandedBytes + kExpandedRatio * (offset + packed.size())) {
      std::vector<std::byte> copy;
      packed = compress_shuffled(bytes_to_write(block, copy), state.kv.shape().element_size(), 0);
    }
    file.write(packed);
    note(block,
         whole            ? kByteShuffle
         : packed.empty() ? kHeldRaw
                          : kHeldShuffle,
         offset, packed.size());
    return offset + packed.size();
  }

  // Of a block. What lies in a mapped file is judged by a copy, which nobody else can change.
  std::span<const std::byte> bytes_to_write(int64_t block, std::vector<std::byte>& copy) const {
    const KvBlock& info = state.kv.block_info(block);
    const size_t size = state.kv.shape().block_bytes();
    if (info.saved() == nullptr) return {info.data(), size};
    if (!info.holds_all()) {
      gather_held(state.kv.shape(), *info.saved()->held, info.data(), copy);
      return copy;
    }
    copy.assign(info.data(), info.data() + size);
    if (!info.saved_as(state.kv.shape(), copy.data()))
      throw DamagedBlock(info.saved()->file, block, 0);
    return copy;
  }

  std::vector<std::vector<std::byte>> compress(std::span<const int64_t> some, int threads) const {
    const KvShape& shape = state.kv.shape();
    std::vector<std::vector<std::byte>> packed(some.size());
    run_each(threads, some.size(), [&](size_t i) {
      std::vector<std::byte> copy;
      const std::span<const std::byte> bytes = bytes_to_write(some[i], copy);
      if (!bytes.empty())
        packed[i] = compress_shuffled(bytes, shape.element_size(), options.compress);
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
  std::vector<Sha256> contents;  // of what tokens do not give
  StateDigests digests;
  std::span<const std::byte> logits_bytes;
  std::vector<int64_t> stored;
  bool indexed = false, windowed = false;

 private:
  std::string meta_text;
  std::vector<std::byte> index_room, kept_bytes;
  ByteWriter index_bytes, prune_bytes, removed_bytes;
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

// What cannot be written so, or not to `path`.
void check_writable(const State& state, const SnapshotMeta& meta, const std::string& path,
                    const SaveOptions& options) {
  if (options.compress < 0 || options.compress > 9) {
    throw Error(ErrorKind::argument, "", "compress", "a level of 0 .. 9",
                std::to_string(options.compress));
  }
  if (options.compress != 0 && !have_zlib()) {
    throw Error(ErrorKind::unsupported, "", "compress", "none (built without zlib)", "zlib");
  }
  if (options.form == SnapshotForm::delta) {
    if (options.parent == nullptr)
      throw Error(ErrorKind::argument, path, "parent", "a snapshot", "none");
    if (options.parent->meta().form == SnapshotForm::recipe) {
      throw Error(ErrorKind::argument, options.parent->path(), "parent",
                  "a snapshot with keys and values", "a recipe");
    }
    if (!(options.parent->meta().kv == meta.kv)) {
      throw Error(ErrorKind::mismatch, options.parent->path(), "parent",
                  "a snapshot with keys and values of the same shape", "another");
    }
    options.parent->check_not_needed(path);
  }
  if (const auto limit =
          options.form == SnapshotForm::recipe ? replay_limit(state) : std::nullopt) {
    throw Error(ErrorKind::argument, path, "form",
                "full or delta (its tokens do not give this state: " + limit->reason + ")",
                "recipe");
  }
  check_generation(state.generation, meta_vocab(meta), state.size(), "");
  check_prune_log(state.prunes.size(), shifted_out(state.prunes));
  check_chat(state.chat, state.transcript_size(), "");
}

StateDigests write_state(const State& state, SnapshotMeta meta, const std::string& path,
                         const SaveOptions& options, const Snapshot* like) {
  check_writable(state, meta, path, options);
  SnapshotWriter writer(state, std::move(meta), options);
  writer.write(path, like);
  return writer.digests;
}

}  // namespace

StateDigests Snapshot::save(Session& session, const std::string& path, const SaveOptions& options) {
  SaveOptions o = options;
  if (o.threads == 0) o.threads = session.compute().threads;
  return with_whole_state(session, [&](const State& state) {
    return write_state(state, meta_of(session, options.tokenizer), path, o, nullptr);
  });
}

std::vector<std::byte> encode_snapshot(Session& session, const SaveOptions& options,
                                       StateDigests* digests) {
  SaveOptions o = options;
  if (o.threads == 0) o.threads = session.compute().threads;
  MemoryFile file;
  *digests = with_whole_state(session, [&](const State& state) {
    const SnapshotMeta meta = meta_of(session, o.tokenizer);
    check_writable(state, meta, "", o);
    SnapshotWriter writer(state, meta, o);
    file = MemoryFile();
    writer.write_to(file, nullptr);
    return writer.digests;
  });
  return file.take();
}

StateDigests Snapshot::save(const State& state, const Snapshot& like, const std::string& path,
                            const SaveOptions& options) {
  SnapshotMeta meta = like.meta();
  meta.kv = state.kv.shape();
  meta.capacity = state.kv.capacity();
  meta.positions = state.size();
  meta.generation = state.generation;
  meta.prunes = state.prunes;
  meta.edits = state.edits;
  meta.interventions = state.interventions;
  meta.chat = state.chat;
  return write_state(state, std::move(meta), path, options, &like);
}

}  // namespace stet
