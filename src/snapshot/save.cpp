// Saves states as snapshot files.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "src/snapshot/file.hpp"
#include "src/snapshot/identity.hpp"
#include "src/snapshot/kv_blocks.hpp"
#include "src/snapshot/meta.hpp"
#include "src/snapshot/recurrent.hpp"
#include "src/threads/interrupt_check.hpp"
#include "stet/base/bytes.hpp"
#include "stet/base/error.hpp"
#include "stet/chat/conversation.hpp"
#include "stet/files/archive.hpp"
#include "stet/files/file.hpp"
#include "stet/generate/generate.hpp"
#include "stet/snapshot/encode.hpp"
#include "stet/snapshot/snapshot.hpp"
#include "stet/text/tokenizer.hpp"
#include "stet/text/utf8.hpp"

namespace stet {
namespace {

// Throws an Error if `form` cannot hold the state, if readers would refuse the file, or if it would
// replace a parent of the delta.
void check_writable(const State& state, const SnapshotMeta& meta, const std::string& path,
                    const SaveOptions& options) {
  if (options.compress < 0 || options.compress > 9) {
    throw Error(ErrorKind::argument, "", "compress", "a level of 0 .. 9",
                std::to_string(options.compress));
  }
  if (options.compress != 0 && !have_zlib()) {
    throw Error(ErrorKind::unsupported, "", "compress", "",
                "compression is not available: this stet was built without zlib");
  }
  if (options.form == SnapshotForm::delta) {
    if (options.parent == nullptr)
      throw Error(ErrorKind::argument, path, "parent", "", "a delta needs a parent");
    options.parent->check_parent(meta.kv, path);
  }
  if (const auto limit =
          options.form == SnapshotForm::recipe ? replay_limit(state) : std::nullopt) {
    throw Error(
        ErrorKind::argument, path, "form", "",
        "the state cannot be saved as a recipe, since its tokens do not give it: " + limit->reason);
  }
  check_generation(state.generation, meta.vocab_size, state.size(), "");
  check_prune_log(state.prunes.size(), shifted_out(state.prunes));
  check_chat(state.chat, state.transcript_size(), "");
}

Digest digest_of_logits(const State& state) {
  return digest_of(state.logits == nullptr ? std::span<const std::byte>()
                                           : std::as_bytes(std::span(*state.logits)));
}

// Collects the contents of a snapshot, reading all keys and values once. Throws a format Error if a
// mapped block is damaged.
SnapshotContents contents_of(const State& state, SnapshotMeta meta, const SaveOptions& options) {
  SnapshotContents c;
  c.tokens = state.tokens;
  c.visible = visibility(state.kv);
  c.blocks = all_block_digests(state.kv, options.threads);
  c.arrays = array_digests(state.recurrent.shape(), state.recurrent.numbers());
  c.digests =
      combine_digests(meta, c.tokens, c.visible, digest_of_logits(state), c.blocks, c.arrays);
  c.contents =
      block_hashes(state, Lineage{state, state.kv.shape()}.blocks_by_content(), options.threads);
  c.digests.id = state_id(state, c.contents);
  c.kept = state.kept;
  meta.form = options.form;
  meta.parent = meta.parent_state = meta.parent_file = meta.logits = "";
  if (options.form == SnapshotForm::recipe)
    meta.logits = digest_text(c.digests.logits);
  else
    c.logits = state.logits;
  if (options.form == SnapshotForm::delta) {
    const StateDigests& parent = options.parent->digests();
    meta.parent = sha256_text(parent.id);
    meta.parent_state = digest_text(parent.state);
    // A name that is not UTF-8 finds no file, and the parent is searched for by its id.
    meta.parent_file =
        utf8_lossy(std::filesystem::path(options.parent->path()).filename().string());
  }
  c.meta = std::move(meta);
  return c;
}

// Returns the blocks that KV stores. Blocks of which nothing is visible are zeros and are left out.
std::vector<int64_t> stored_blocks(const SnapshotContents& contents, const Snapshot* parent) {
  std::vector<int64_t> stored;
  const SnapshotForm form = contents.meta.form;
  for (int64_t b = 0; b < std::ssize(contents.visible) && form != SnapshotForm::recipe; ++b) {
    if (contents.visible[static_cast<size_t>(b)] == 0) continue;
    const bool in_parent = form == SnapshotForm::delta && b < blocks_of(parent->meta().positions) &&
                           std::ranges::equal(contents.block_digests(b), parent->block_digests(b));
    if (!in_parent) stored.push_back(b);
  }
  return stored;
}

// The destination of a snapshot: a file or memory.
class Output {
 public:
  virtual ~Output() = default;
  virtual void write(std::span<const std::byte> bytes) = 0;
  virtual void write(const ArchiveWriter& archive) = 0;
  virtual void write_at(uint64_t offset, std::span<const std::byte> bytes) = 0;
  virtual uint64_t written() const = 0;
};

class FileOutput : public Output {
 public:
  FileOutput(const std::string& path, unsigned mode) : file_(path, mode) {}
  void write(std::span<const std::byte> bytes) override { file_.write(bytes); }
  void write(const ArchiveWriter& archive) override { archive.write(file_); }
  void write_at(uint64_t offset, std::span<const std::byte> bytes) override {
    file_.write_at(offset, bytes);
  }
  uint64_t written() const override { return file_.written(); }
  void commit() { file_.commit(); }

 private:
  AtomicFile file_;
};

// Collects a snapshot in memory. Refuses archives, which are as large as a checkpoint.
class MemoryOutput : public Output {
 public:
  void write(std::span<const std::byte> bytes) override {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void write(const ArchiveWriter&) override {
    throw Error(ErrorKind::argument, "", "with weights", "",
                "weights can be saved to a file only, not to memory");
  }
  void write_at(uint64_t offset, std::span<const std::byte> bytes) override {
    copy_bytes(bytes, bytes_.data() + offset);
  }
  uint64_t written() const override { return bytes_.size(); }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Writes one snapshot: its sections in order, then header and table, which hold the sections'
// digests.
class SnapshotWriter {
 public:
  // Copies the sections of `like` that this version does not know. `like` may be null.
  SnapshotWriter(const State& state, const SnapshotContents& contents, const SaveOptions& options,
                 const SnapshotFile* like)
      : kv_(state.kv),
        contents_(contents),
        options_(options),
        like_(like),
        stored_(stored_blocks(contents, options.parent)),
        recurrent_(state, contents, options.parent),
        encoded_(encode_contents(contents)) {
    if (options.weights_files != nullptr)
      weights_.emplace(*options.weights_files, Model::files_of(*options.weights_files));
    if (options.tokenizer_files != nullptr)
      tokenizer_.emplace(*options.tokenizer_files, Tokenizer::files_of(*options.tokenizer_files));
    windowed_ =
        std::ranges::any_of(stored_, [&](int64_t b) { return !kv_.block_info(b).holds_all(); });
    // without an index, readers expect every block in raw form
    indexed_ = options.compress != 0 || windowed_ || std::ssize(stored_) != kv_.blocks();
  }

  void write(Output& out) {
    place_sections();
    for (size_t i = 0; i + 1 < sections_.size(); ++i) {
      pad(out, sections_[i].offset);
      if (payloads_[i].archive != nullptr)
        out.write(*payloads_[i].archive);
      else
        out.write(payloads_[i].bytes);
      for (const std::span<const std::byte> piece : payloads_[i].pieces) out.write(piece);
    }
    write_kv(out);
    out.write_at(0, encode_front(sections_, snapshot_version(contents_.meta.kv),
                                 features_of(contents_, options_.compress != 0, windowed_),
                                 contents_.digests));
  }

 private:
  struct Payload {
    std::span<const std::byte> bytes;
    const ArchiveWriter* archive;  // written instead of the bytes, unless null
    std::span<const std::span<const std::byte>> pieces = {};  // written after the bytes
  };

  void add(const std::string& name, std::span<const std::byte> bytes, bool must_know = true) {
    sections_.push_back({name, 0, bytes.size(), digest_of(bytes), must_know});
    payloads_.push_back({bytes, nullptr});
  }

  // Adds the files of an option, or else those of the snapshot that the state continues.
  void add(const std::string& name, const std::optional<ArchiveWriter>& archive) {
    if (archive) {
      sections_.push_back({name, 0, archive->size(), digest_of(archive->index()), false});
      payloads_.push_back({{}, &*archive});
    } else if (const SnapshotFile* from = holder_of(options_.from, name);
               from != nullptr && holder_of(options_.parent, name) == nullptr) {
      copy(*from, *from->find(name));
    }
  }

  void copy(const SnapshotFile& from, const SnapshotSection& s) {
    sections_.push_back({s.name, 0, s.size, s.digest, s.must_know});
    payloads_.push_back({from.content(s.name), nullptr});
  }

  void add(const PieceSection& s) {
    sections_.push_back({s.name, 0, s.size, s.digest, s.name == "STATE"});
    payloads_.push_back({{}, nullptr, s.pieces});
  }

  void copy_other_sections() {
    if (like_ == nullptr) return;
    for (const SnapshotSection& s : like_->sections) {
      if (!is_known_section(s.name)) copy(*like_, s);
    }
  }

  // Places the sections. KV comes last, since its size is not known before it is compressed.
  void place_sections() {
    for (const EncodedSection& s : encoded_) add(s.name, s.bytes, s.must_know);
    index_room_.resize(stored_.size() * KvSectionWriter::kIndexEntry);
    if (indexed_) add("KVINDEX", index_room_);
    for (const PieceSection& s : recurrent_.all()) add(s);
    add("WEIGHTS", weights_);
    add("TOKENIZR", tokenizer_);
    copy_other_sections();
    add("KV", std::span<const std::byte>());
    uint64_t end = front_bytes(sections_.size());
    for (SnapshotSection& s : sections_) {
      const bool no_blocks = s.name == "KV" && stored_.empty();  // nothing to align to pages
      s.offset = section_offset(no_blocks ? "META" : s.name, end);
      end = s.offset + s.size;
    }
  }

  static void pad(Output& out, uint64_t to) {
    static const std::byte zeros[4096] = {};
    while (out.written() < to)
      out.write(std::span(zeros).first(std::min<uint64_t>(4096, to - out.written())));
  }

  void write_kv(Output& out) {
    SnapshotSection& kv = sections_.back();
    pad(out, kv.offset);
    KvSectionWriter blocks(kv_, options_.compress, threads_or_all(options_.threads));
    blocks.write(stored_, [&](std::span<const std::byte> bytes) { out.write(bytes); });
    kv.size = out.written() - kv.offset;
    kv.digest = contents_.digests.kv;
    if (!indexed_) return;
    SnapshotSection& index = *std::ranges::find(sections_, "KVINDEX", &SnapshotSection::name);
    index.digest = digest_of(blocks.index());
    out.write_at(index.offset, blocks.index());
  }

  const KvCache& kv_;
  const SnapshotContents& contents_;
  const SaveOptions& options_;
  const SnapshotFile* const like_;
  const std::vector<int64_t> stored_;
  const RecurrentSections recurrent_;
  const std::vector<EncodedSection> encoded_;
  bool indexed_ = false, windowed_ = false;
  std::optional<ArchiveWriter> weights_, tokenizer_;
  std::vector<std::byte> index_room_;
  std::vector<SnapshotSection> sections_;
  std::vector<Payload> payloads_;  // one for each section
};

StateDigests save_state(const State& state, SnapshotMeta meta, const std::string& path,
                        const SaveOptions& options, const SnapshotFile* like) {
  check_writable(state, meta, path, options);
  check_interrupt();
  const SnapshotContents contents = contents_of(state, std::move(meta), options);
  SnapshotWriter writer(state, contents, options, like);
  FileOutput file(path, options.mode);
  writer.write(file);
  file.commit();
  return contents.digests;
}

// Calls `use` with the complete state of a session. Tries again if a mapped file has changed since
// the session checked it.
template <class Use>
StateDigests with_whole_state(Session& session, Use use) {
  constexpr int kMostTries = 8;
  for (int tries = 0;; ++tries) {
    const State& state = session.state();  // recomputes missing and damaged blocks
    try {
      return use(state);
    } catch (const DamagedBlock&) {
      if (tries == kMostTries) throw;
    }
  }
}

SaveOptions with_threads_of(const Session& session, const SaveOptions& options) {
  SaveOptions o = options;
  if (o.threads == 0) o.threads = session.compute().threads;
  return o;
}

}  // namespace

StateDigests Snapshot::save(Session& session, const std::string& path, const SaveOptions& options) {
  const SaveOptions o = with_threads_of(session, options);
  session.keep_anchor();
  return with_whole_state(session, [&](const State& state) {
    return save_state(state, meta_of(state, session, o.tokenizer), path, o, nullptr);
  });
}

StateDigests Snapshot::save(const State& state, const Snapshot& like, const std::string& path,
                            const SaveOptions& options) {
  like.check_keeps_parents(path);
  SaveOptions o = options;
  if (o.from == nullptr) o.from = &like;
  return save_state(state, meta_of(state, like.meta()), path, o, like.file().get());
}

std::vector<std::byte> encode_snapshot(Session& session, const SaveOptions& options,
                                       StateDigests* digests) {
  const SaveOptions o = with_threads_of(session, options);
  MemoryOutput memory;
  *digests = with_whole_state(session, [&](const State& state) {
    const SnapshotMeta meta = meta_of(state, session, o.tokenizer);
    check_writable(state, meta, "", o);
    check_interrupt();
    const SnapshotContents contents = contents_of(state, meta, o);
    memory = MemoryOutput();
    SnapshotWriter(state, contents, o, nullptr).write(memory);
    return contents.digests;
  });
  return memory.take();
}

StateDigests digests_of(Session& session) {
  return with_whole_state(session, [&](const State& state) {
    SaveOptions o;
    o.threads = session.compute().threads;
    return contents_of(state, meta_of(state, session, nullptr), o).digests;
  });
}

}  // namespace stet
