// A session in a file (file.hpp).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stet/api.h"
#include "stet/files/file_source.hpp"
#include "stet/session/identity.hpp"
#include "stet/session/session.hpp"
#include "stet/snapshot/file.hpp"
#include "stet/text/tokenizer.hpp"

namespace stet {

// Computes missing logits first (after a rewind), hence not const. Throws a format Error when a
// block that was mapped and not looked at yet is damaged.
STET_API StateDigests digests_of(Session& session);

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

// A file that was opened, and the parents of a delta. Copies share them.
class STET_API Snapshot {
 public:
  using Section = SnapshotSection;

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

  // All that was read of the file.
  const std::shared_ptr<const SnapshotFile>& file() const { return file_; }
  const std::string& path() const { return file_->path; }
  // Whether a path leads to the file that this snapshot was opened from, by whatever name.
  bool is_file_at(const std::string& path) const;
  // Throws an argument Error for a path that leads to this snapshot's file or to one of its
  // parents': a delta that is made from it must not take their place.
  void check_not_needed(const std::string& path) const;
  uint64_t file_size() const { return file_->bytes.size(); }
  uint32_t version() const { return kSnapshotVersion; }  // of its format
  const std::vector<Section>& sections() const { return file_->sections; }
  const SnapshotMeta& meta() const { return file_->meta; }
  const std::vector<int32_t>& tokens() const { return file_->tokens; }
  const GenerationState& generation() const { return file_->meta.generation; }
  const std::vector<float>& logits() const { return *file_->logits; }  // empty in a recipe
  // The id as the file gives it: check() proves it.
  const StateDigests& digests() const { return file_->digests; }
  // Of every full block (identity.hpp).
  std::vector<BlockIdentity> block_identities() const;
  std::string state_name() const { return sha256_text(digests().id); }
  uint64_t visible(int64_t block) const { return file_->visible[static_cast<size_t>(block)]; }
  // Of one block: one for each layer.
  std::span<const Digest> block_digests(int64_t block) const { return file_->block_digests(block); }
  // What it takes to compute the state again: tokens, prunes and settings, without keys and values.
  State recipe() const { return file_->recipe(); }
  StateOrigin origin() const { return file_->origin(); }
  uint64_t stored_kv_bytes() const;
  // Blocks of this file without the layers that have a window.
  int64_t windowed_blocks() const;

 private:
  explicit Snapshot(std::shared_ptr<const SnapshotFile> file) : file_(std::move(file)) {}
  std::shared_ptr<const FileSource> archive(const std::string& name) const;

  std::shared_ptr<const SnapshotFile> file_;
  std::vector<std::shared_ptr<const Snapshot>> parents_;
};

}  // namespace stet
