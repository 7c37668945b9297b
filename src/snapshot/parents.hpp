// The chain of a delta: the file, its parent, that one's parent, and so on to a full snapshot.
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

  // Of a snapshot whose parents were found already, or are found here.
  explicit SnapshotChain(const Snapshot& snapshot);
  // `path`: of the nearest parent; none: it is looked for beside the delta. Throws an io Error
  // where a parent is missing, a format Error where one does not fit.
  SnapshotChain(std::shared_ptr<const SnapshotFile> file, const std::optional<std::string>& path);

  const Files& parents() const { return parents_; }  // the nearest first
  // The file that holds a block; null where nothing of it is visible. Each file up to that one must
  // know the block by the same digests (format Error).
  const SnapshotFile* holder(int64_t block) const;

 private:
  void add(std::shared_ptr<const SnapshotFile> parent, const SnapshotFile& of);

  std::shared_ptr<const SnapshotFile> file_;
  Files parents_;
  size_t meta_bytes_ = 0;  // of the parents
};

}  // namespace stet
