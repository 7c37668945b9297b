// Follows the chain of a delta: the file, its parent, the parent's parent, up to a full snapshot.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stet/snapshot/file.hpp"
#include "stet/snapshot/snapshot.hpp"

namespace stet {

class SnapshotChain {
 public:
  using Files = std::vector<std::shared_ptr<const SnapshotFile>>;

  // Uses the parents that the snapshot has found, or finds them.
  explicit SnapshotChain(const Snapshot& snapshot);
  // `path` is the nearest parent's; if it is null, the parent is searched for in the delta's
  // directory. Throws an io Error if a parent is missing, and a format Error if one does not fit.
  SnapshotChain(std::shared_ptr<const SnapshotFile> file, const std::optional<std::string>& path);
  // Uses an open snapshot as the nearest parent, with its own parents. Throws like the above.
  SnapshotChain(std::shared_ptr<const SnapshotFile> file, const Snapshot& parent);

  const Files& parents() const { return parents_; }  // the nearest first
  // Returns the file that holds a block, or null if nothing of the block is visible. Throws a
  // format Error unless every file up to that one states the same digests for the block.
  const SnapshotFile* holder(int64_t block) const;

 private:
  std::shared_ptr<const SnapshotFile> find_parent(const SnapshotFile& of) const;
  void check_is_new(const SnapshotFile& parent, const SnapshotFile& of) const;
  void add(std::shared_ptr<const SnapshotFile> parent, const SnapshotFile& of);

  std::shared_ptr<const SnapshotFile> file_;
  Files parents_;
  size_t meta_bytes_ = 0;  // META bytes of all parents
};

}  // namespace stet
