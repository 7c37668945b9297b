// A session in a file. The format is specified at the head of src/snapshot/write.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stet/api.h"
#include "stet/base/sha256.hpp"
#include "stet/files/file.hpp"
#include "stet/files/file_source.hpp"
#include "stet/session/identity.hpp"
#include "stet/session/session.hpp"
#include "stet/text/tokenizer.hpp"

namespace stet {

constexpr uint32_t kSnapshotVersion = 3;  // written and read

// What tells a state from others. XXH3 finds damage quickly; the id is its name.
struct StateDigests {
  Digest tokens;  // token ids
  Digest logits;  // of the last position
  Digest kv;      // the digests of all layers of all blocks
  // Covers all of it: contract, model, tokens, visibility, logits, keys, values, generation state,
  // prunes, messages.
  Digest state;
  Sha256 id;  // identity.hpp
};

// Computes missing logits first (after a rewind), hence not const. Throws a format Error when a
// block that was mapped and not looked at yet is damaged.
STET_API StateDigests digests_of(Session& session);

// Forms of one state; all restore to the same bytes.
enum class SnapshotForm {
  full,    // everything
  delta,   // keys and values that its parent, another snapshot, does not have
  recipe,  // no keys and values: they are computed again, and proved by their digests
};
STET_API const char* snapshot_form_name(SnapshotForm form);
STET_API std::optional<SnapshotForm> parse_snapshot_form(const std::string& name);  // the inverse

// What a snapshot says about itself.
struct SnapshotMeta {
  SnapshotForm form = SnapshotForm::full;
  std::string parent;        // delta: the parent's id
  std::string parent_state;  // delta: the parent's state digest
  std::string parent_file;   // delta: the name its file had
  std::string logits;        // recipe: their digest
  std::string contract;      // contract_name()
  int contract_version = 0;
  // The name of the directory that the model came from: a hint, not part of the state.
  std::string checkpoint;
  std::string architecture;
  std::string config;  // ModelConfig::canonical()
  // The texts of Model::fingerprints().
  std::vector<std::pair<std::string, std::string>> fingerprints;
  std::string tokenizer;  // its fingerprint, or empty
  KvShape kv;
  int64_t capacity = 0, positions = 0;
  GenerationState generation;
  std::vector<Prune> prunes;
  std::vector<KvEdit> edits;
  std::vector<Intervention> interventions;
  ChatState chat;
};

// A log of prunes, of edits or of interventions as JSON; the first, which may be long, in pieces.
STET_API void encode_prunes(const std::vector<Prune>& prunes,
                            const std::function<void(std::string_view)>& piece);
STET_API std::string encode_edits(const std::vector<KvEdit>& edits);
STET_API std::string encode_interventions(const std::vector<Intervention>& all);

class Snapshot;

STET_API bool have_zlib();  // whether this build can compress

struct SaveOptions {
  SnapshotForm form = SnapshotForm::full;
  int compress = 0;  // zlib level 1 .. 9; 0: blocks as they are, which can be mapped
  const Snapshot* parent = nullptr;  // delta: the parent
  // In use with the session: its fingerprint is saved. Null: none is.
  const Tokenizer* tokenizer = nullptr;
  // Self-contained: the files of the model and of the tokenizer, put into the snapshot. They must
  // outlive the call.
  const FileSource* weights_files = nullptr;
  const FileSource* tokenizer_files = nullptr;
  int threads = 0;       // 0: all processors
  unsigned mode = 0600;  // of a new file, less the umask: it holds a conversation
};

struct RestoreOptions {
  // How to compute and, if not 0, a new capacity. The kv type counts for `replay` alone.
  SessionOptions session = {};
  // Must have the fingerprint that was saved, if any was. Null: none is in use.
  const Tokenizer* tokenizer = nullptr;
  bool map = true;     // use uncompressed blocks in place, in the mapped file
  bool check = false;  // look at all blocks now, not when they are first used
  bool heal = false;   // compute damaged blocks again
  bool trust = false;  // take blocks as they are, damaged or not: to compare them
  // Compute everything again from the tokens, under a model or contract other than the saved one.
  bool replay = false;
  // By what all tokens of a state are computed again; null: by the session alone.
  Appender append = nullptr;
};

// How a restored session came about.
struct RestoreReport {
  int64_t reused = 0;           // tokens whose keys and values were taken from the file
  int64_t recomputed = 0;       // tokens that were processed again
  std::vector<int64_t> healed;  // blocks
  // Whether every digest was compared; if not, this happens block by block before first use.
  bool checked = false;
};

// What Snapshot::check() looked at.
struct SnapshotCheck {
  size_t blocks = 0;  // of keys and values, those of parents among them
  size_t files = 0;   // of a self-contained snapshot
};

class STET_API Snapshot {
 public:
  struct Section {
    std::string name;
    uint64_t offset = 0, size = 0;
    Digest digest;
    bool must_know = true;  // a reader that does not know it must refuse the file
  };

  // Writes everything that `session` is to `path`, which afterwards is the whole new snapshot or,
  // on an io Error, what it was before; but for an Error whose field is "durability": then it is
  // the new one, which a loss of power may undo. Returns the digests. Throws an argument Error for
  // a generation state that could not be read back (see check_generation), and for a delta over a
  // file that it needs.
  static StateDigests save(Session& session, const std::string& path,
                           const SaveOptions& options = {});
  // The same for a state without a session, as of a snapshot that is converted or pruned: `like`
  // tells of which model and tokenizer, and its sections that stet does not need for a state
  // (self-contained weights, unknown optional ones) are kept.
  static StateDigests save(const State& state, const Snapshot& like, const std::string& path,
                           const SaveOptions& options);

  // Reads and checks all but the keys and values, which stay in the file until they are used:
  // tokens, logits, and the shape of keys and values fit the config; what is claimed stays within
  // limits.hpp. Throws Error: io, or format for anything that is not as it was written.
  static Snapshot open(const std::string& path);
  // The same, with the parents of a delta (find_parents).
  static Snapshot open_with_parents(const std::string& path,
                                    const std::optional<std::string>& parent = std::nullopt);
  // From bytes that outlive the snapshot and everything restored from it.
  static Snapshot parse(std::span<const std::byte> bytes, const std::string& path);

  // A session equal to the one that was saved. Refuses (mismatch Error, all differences at once) a
  // model, a tokenizer or a contract other than those of the snapshot. Any number of threads may
  // restore from one snapshot at once. What happens to a mapped file later, the session heals (see
  // Session); with `map` false nothing that happens to it can reach the session.
  Session restore(std::shared_ptr<const Model> model, const RestoreOptions& how = {},
                  RestoreReport* report = nullptr) const;
  // The refusal of restore() alone. `tokenizer` null: none is in use.
  void check_compatible(const Model& model, Contract contract,
                        const Tokenizer* tokenizer = nullptr) const;
  // The state alone, without a model. Not of a recipe. Of the session's options, capacity and
  // number of threads count.
  State state(const RestoreOptions& how = {}) const;

  // Proves, without a model, that every byte is what was written, and that its id is that of its
  // state. Opening has proved all but the id, keys, values and the files that the snapshot brings
  // along. Of a recipe's keys, values and logits there are digests alone. Throws the first fault: a
  // format Error, an io Error for a parent that is missing. `threads` 0: all processors.
  SnapshotCheck check(int threads = 0) const;

  // The same of the keys and values that this file holds itself.
  void check_own_blocks() const;

  // A delta needs its parent, and all of that one's parents: `path`, or where none is given the
  // file that it was made from, or any file (*.stet) beside this one with that state. Without this
  // call, restore() and state() find them each time; after it, they never change. Throws an io
  // Error where one is missing, a format Error where one does not fit.
  void find_parents(const std::optional<std::string>& path = std::nullopt);
  const std::vector<std::shared_ptr<const Snapshot>>& parents() const {
    return parents_;
  }  // found; the nearest first

  // The files of the model and of the tokenizer that the snapshot brings along; null when it does
  // not.
  std::shared_ptr<const FileSource> weights() const { return archive("WEIGHTS"); }
  std::shared_ptr<const FileSource> tokenizer_files() const { return archive("TOKENIZR"); }

  const std::string& path() const { return path_; }
  // Whether a path leads to the file that this snapshot was opened from, by whatever name.
  bool is_file_at(const std::string& path) const;
  // Throws an argument Error for a path that leads to this snapshot's file or to one of its
  // parents': a delta that is made from it must not take their place.
  void check_not_needed(const std::string& path) const;
  uint64_t file_size() const { return bytes_.size(); }
  uint32_t version() const { return kSnapshotVersion; }  // of its format
  const std::vector<Section>& sections() const { return sections_; }
  const SnapshotMeta& meta() const { return meta_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const GenerationState& generation() const { return meta_.generation; }
  const std::vector<float>& logits() const { return *logits_; }  // empty in a recipe
  // The id as the file gives it: check() proves it.
  const StateDigests& digests() const { return digests_; }
  // Of every full block (identity.hpp).
  std::vector<BlockIdentity> block_identities() const;
  std::string state_name() const { return sha256_text(digests_.id); }
  uint64_t visible(int64_t block) const { return visible_[static_cast<size_t>(block)]; }
  // Of one block: one for each layer.
  std::span<const Digest> block_digests(int64_t block) const;
  // What it takes to compute the state again: tokens, prunes and settings, without keys and values.
  State recipe() const {
    return {origin(),         tokens_,      {},          nullptr,
            meta_.generation, meta_.prunes, meta_.edits, meta_.interventions,
            meta_.chat};
  }
  StateOrigin origin() const {
    return {meta_.contract, meta_.contract_version, meta_.fingerprints.back().second};
  }
  uint64_t stored_kv_bytes() const;
  // Blocks of this file without the layers that have a window.
  int64_t windowed_blocks() const;

 private:
  // Bytes of a file that hold a block.
  struct Extent {
    uint64_t offset = 0, size = 0;
    uint32_t encoding = 0;  // format.hpp
    bool there = false;
  };
  // Where a block's bytes are: in this file or in a parent's; null: nowhere.
  struct BlockLocation {
    const Snapshot* file = nullptr;
    Extent extent;
  };

  // Of the bytes of a block.
  struct BlockNames {
    std::vector<Digest> digests;
    Sha256 content;
  };

  using Parents = std::vector<std::shared_ptr<const Snapshot>>;

  Snapshot() = default;
  const Section& section(const std::string& name) const;
  std::span<const std::byte> content(const std::string& name) const;
  std::shared_ptr<const FileSource> archive(const std::string& name) const;
  bool has_section(const std::string& name) const;
  std::span<const std::byte> optional_content(const std::string& name) const;
  void check_vocabulary() const;
  void read_contents();
  void read_extents();
  void read_index();
  void check_expanded(uint64_t block, uint64_t size, uint64_t expanded) const;
  uint64_t stored_bytes(uint32_t encoding) const;
  bool is_file_of(const Snapshot& other) const;
  Parents parents_or_find() const;
  Parents resolve_parents(const std::optional<std::string>& path) const;
  std::shared_ptr<const Snapshot> find_parent(const std::optional<std::string>& path) const;
  BlockLocation locate(int64_t block, const Parents& parents) const;
  State load(const RestoreOptions& how, std::vector<int64_t>* damaged) const;
  void refuse_damage(const std::vector<int64_t>& damaged) const;
  std::shared_ptr<KvBlock> load_block(KvCache& kv, const BlockLocation& at, int64_t block,
                                      const RestoreOptions& how) const;
  std::shared_ptr<KvBlock> read_block(KvCache& kv, const BlockLocation& at, int64_t block,
                                      bool trust) const;
  SavedBlock saved_block(int64_t block, const BlockLocation& at) const;
  void prove(Session& session) const;
  BlockNames names_of_block(const std::byte* bytes, bool with_content) const;
  void check_block(int64_t block, const Parents& parents, const BlockNames& of_zeros,
                   const Sha256* content) const;
  void check_held_block(int64_t block, const Snapshot& file, std::span<const std::byte> bytes,
                        const Sha256* content) const;
  void check_id() const;
  bool is_parent(const Sha256& id) const;
  bool is_block(int64_t block, const std::byte* bytes) const;

  std::shared_ptr<const MappedFile> file_;  // null when parsed from bytes
  std::span<const std::byte> bytes_;
  std::string path_;
  std::vector<Section> sections_;
  SnapshotMeta meta_;
  std::vector<int32_t> tokens_;
  std::vector<uint64_t> visible_;
  std::shared_ptr<std::vector<float>> logits_;  // shared with what is restored
  std::vector<Digest> blocks_;
  std::vector<Sha256> contents_;  // of blocks that are named by it
  KeptLogits kept_;
  std::vector<Extent> extents_;             // of the blocks in this file
  std::shared_ptr<const HeldLayers> held_;  // by blocks without layers; null: there are none
  Parents parents_;
  StateDigests digests_;

  friend struct SnapshotWriter;
};

}  // namespace stet
