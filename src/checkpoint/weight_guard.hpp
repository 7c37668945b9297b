// Watches packed weights used in place from a mapped file, which others may overwrite or truncate.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "stet/checkpoint/checkpoint.hpp"
#include "stet/files/mapped_file.hpp"

namespace stet {

// Holds the digests that the file states for its weights, and compares them again whenever the file
// has changed. Any number of threads may share one.
class WeightGuard {
 public:
  // `checkpoint` must be packed and in a mapped file.
  explicit WeightGuard(Checkpoint checkpoint);

  // Returns a number that changes each time the file has changed. Read it before reading weights.
  uint64_t version() const;
  // Returns whether the weights have been intact ever since `version`. If the file was written to
  // meanwhile, returns false even if the weights are intact now. Throws a format Error naming the
  // first tensor that does not match its digest.
  bool intact_since(uint64_t version) const;

 private:
  Checkpoint checkpoint_;
  std::shared_ptr<const MappedFile> file_;
  mutable std::mutex mutex_;
  mutable FileStamp stamp_;  // the stamp when the weights were last verified
  mutable uint64_t version_ = 0;
};

}  // namespace stet
