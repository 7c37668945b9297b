// Snapshots: sessions saved to files (file.hpp).
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

// Returns the digests of a session. Computes missing logits first (after a rewind), so the session
// is not const. Throws a format Error if a mapped block turns out to be damaged.
STET_API StateDigests digests_of(Session& session);

class Snapshot;
class SnapshotChain;

STET_API bool have_zlib();  // true if this build can compress

// Options of Snapshot::save().
struct SaveOptions {
  SnapshotForm form = SnapshotForm::full;
  int compress = 0;                  // zlib level 1 .. 9; 0: uncompressed, can be mapped
  const Snapshot* parent = nullptr;  // required for a delta
  // The session's tokenizer, whose fingerprint is saved; may be null.
  const Tokenizer* tokenizer = nullptr;
  // The files of model and tokenizer that a self-contained snapshot includes. They must outlive the
  // call.
  const FileSource* weights_files = nullptr;
  const FileSource* tokenizer_files = nullptr;
  // The snapshot that the state continues, or null. What it includes of these files is included
  // again, unless the parent of a delta has them. It must outlive the call.
  const Snapshot* from = nullptr;
  int threads = 0;       // 0: all processors
  unsigned mode = 0600;  // permissions of a new file, less the umask: private by default
};

// Options of Snapshot::restore() and state().
struct RestoreOptions {
  // Compute options and, if not 0, a new capacity. The KV type applies only to `replay`.
  SessionOptions session = {};
  // The tokenizer in use. It must have the saved fingerprint, if there is one. May be null.
  const Tokenizer* tokenizer = nullptr;
  bool map = true;     // use uncompressed blocks in place, in the mapped file
  bool check = false;  // check all blocks now instead of before their first use
  bool heal = false;   // recompute damaged blocks
  // Use blocks unchecked, even damaged ones: for comparisons. Excludes `check` and `heal`.
  bool trust = false;
  // Recompute everything from the tokens, under another model or contract than the saved one.
  bool replay = false;
  // Processes the tokens that a state is recomputed from; null: Session::append does.
  Appender append = nullptr;
};

// A report of how a session was restored.
struct RestoreReport {
  int64_t reused = 0;                  // tokens whose keys and values came from the file
  int64_t recomputed = 0;              // tokens processed again
  std::vector<int64_t> healed;         // blocks
  std::vector<int64_t> healed_layers;  // recurrent layers
  // True if every digest was compared; otherwise each block is checked before its first use.
  bool checked = false;
};

// Numbers of items checked by Snapshot::check().
struct SnapshotCheck {
  size_t blocks = 0;  // blocks of keys and values, including those of parents
  size_t files = 0;   // files in a self-contained snapshot
  size_t arrays = 0;  // layers with recurrent arrays, and anchors
};

// An opened snapshot, with the parents of a delta. Copies share both.
class STET_API Snapshot {
 public:
  using Section = SnapshotSection;

  // Saves the session to `path` and returns the digests. The file is replaced atomically: after an
  // io Error it is what it was before. The exception is an Error with field "durability": the file
  // is then the new snapshot, but a power loss may undo it. Throws an argument Error for an invalid
  // generation state (check_generation), and for a delta that would replace a file it needs.
  static StateDigests save(Session& session, const std::string& path,
                           const SaveOptions& options = {});
  // Saves a state without a session, for example from a converted or pruned snapshot. `like`
  // provides model and tokenizer. Its sections that do not belong to the state (self-contained
  // weights, unknown optional ones) are copied. Throws an argument Error if the file would replace a
  // parent of `like`.
  static StateDigests save(const State& state, const Snapshot& like, const std::string& path,
                           const SaveOptions& options);

  // Opens a snapshot and checks everything but keys and values, which stay in the file until they
  // are used. Tokens, logits and shapes must fit the config, and sizes must be within limits.hpp.
  // Throws an io Error, or a format Error for anything that is not as it was written.
  static Snapshot open(const std::string& path);
  // Opens a snapshot and the parents of a delta (find_parents).
  static Snapshot open_with_parents(const std::string& path,
                                    const std::optional<std::string>& parent = std::nullopt);
  // Opens a snapshot from bytes, which must outlive it and everything restored from it. Errors
  // report `path`, and no file is opened. The parent of a delta has to be given (set_parent).
  static Snapshot parse(std::span<const std::byte> bytes, const std::string& path);

  // Returns a session equal to the saved one. Throws a mismatch Error, which lists all differences,
  // for another model, tokenizer or contract. Any number of threads may restore from one snapshot
  // at once.
  //
  // If the mapped file changes later, the session heals itself (see Session). With `map` false it
  // does not depend on the file.
  Session restore(std::shared_ptr<const Model> model, const RestoreOptions& how = {},
                  RestoreReport* report = nullptr) const;
  // Throws the mismatch Error that restore() would throw. `tokenizer` may be null.
  void check_compatible(const Model& model, Contract contract,
                        const Tokenizer* tokenizer = nullptr) const;
  // Returns the state without a session; needs no model. Not available for a recipe. Of the
  // session's options, only capacity and threads are used.
  State state(const RestoreOptions& how = {}) const;

  // Verifies, without a model, that every byte is as written, and that the id matches the state.
  // open() has verified all but the id, keys, values and included files. For a recipe, only digests
  // of keys, values and logits exist.
  //
  // Throws a format Error for the first fault, or an io Error for a missing parent. `threads` 0:
  // all processors.
  SnapshotCheck check(int threads = 0) const;

  // Verifies the keys and values in this file.
  void check_own_blocks() const;

  // Finds the parent of a delta and the parent's parents. The parent is `path`, otherwise the file
  // that the delta was made from, otherwise any *.stet file with that state in this file's
  // directory.
  //
  // Without this call, restore() and state() search each time; after it, parents stay fixed. Throws
  // an io Error if one is missing and a format Error if one does not fit. With a path, throws an
  // argument Error for a snapshot that is not a delta.
  void find_parents(const std::optional<std::string>& path = std::nullopt);
  // Makes an open snapshot, which may be in memory, the parent of this delta, with the parents of
  // its own. Throws like find_parents() with a path.
  void set_parent(const Snapshot& parent);
  const std::vector<std::shared_ptr<const Snapshot>>& parents() const {
    return parents_;
  }  // nearest first

  // Return the files of model and tokenizer included in the snapshot, or in the nearest of
  // parents(), or null.
  std::shared_ptr<const FileSource> weights() const { return archive("WEIGHTS"); }
  std::shared_ptr<const FileSource> tokenizer_files() const { return archive("TOKENIZR"); }

  // Returns the contents of the file.
  const std::shared_ptr<const SnapshotFile>& file() const { return file_; }
  const std::string& path() const { return file_->path; }
  // Returns true if the path leads to this snapshot's file, under any name.
  bool is_file_at(const std::string& path) const;
  // Throws an argument Error if the path leads to this snapshot's file or to a parent's. A delta
  // made from it must not replace them.
  void check_may_overwrite(const std::string& path) const;
  // Throws an argument Error if the path leads to a parent's file of this delta. A snapshot that
  // is made from it, in whatever form, must not break it.
  void check_keeps_parents(const std::string& path) const;
  // Throws an Error unless a delta with keys and values of this shape can be made against this
  // snapshot. A chain beyond limits.hpp is refused. `path` is where it is written, or empty.
  void check_parent(const KvShape& shape, const std::string& path) const;
  uint64_t file_size() const { return file_->bytes.size(); }
  uint32_t version() const { return snapshot_version(meta().kv); }  // version of the file format
  const std::vector<Section>& sections() const { return file_->sections; }
  const SnapshotMeta& meta() const { return file_->meta; }
  const std::vector<int32_t>& tokens() const { return file_->tokens; }
  const GenerationState& generation() const { return file_->meta.generation; }
  const std::vector<float>& logits() const { return *file_->logits; }  // empty for a recipe
  // Returns the digests stored in the file; check() verifies the id.
  const StateDigests& digests() const { return file_->digests; }
  // Returns the identities of all full blocks (identity.hpp).
  std::vector<BlockIdentity> block_identities() const;
  std::string state_name() const { return sha256_text(digests().id); }
  uint64_t visible(int64_t block) const { return file_->visible[static_cast<size_t>(block)]; }
  // Returns one digest per layer of a block.
  std::span<const Digest> block_digests(int64_t block) const { return file_->block_digests(block); }
  // Returns the inputs for recomputing the state: tokens, prunes and settings, without keys and
  // values.
  State recipe() const { return file_->recipe(); }
  StateOrigin origin() const { return file_->origin(); }
  uint64_t stored_kv_bytes() const;
  // Returns the number of blocks in this file that lack the layers with a window.
  int64_t count_window_only_blocks() const;

 private:
  explicit Snapshot(std::shared_ptr<const SnapshotFile> file) : file_(std::move(file)) {}
  std::shared_ptr<const FileSource> archive(const std::string& name) const;
  void check_is_delta() const;
  void use_parents(const SnapshotChain& chain);

  std::shared_ptr<const SnapshotFile> file_;
  std::vector<std::shared_ptr<const Snapshot>> parents_;
};

}  // namespace stet
