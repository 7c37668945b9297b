// Packed weights that are used where they stand in a mapped file, which somebody may write to or
// cut off meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "stet/checkpoint/checkpoint.hpp"
#include "stet/files/mapped_file.hpp"

namespace stet {

// Knows what the weights must be, by the digests that stand in the file, and compares them whenever
// the file has changed. Any number of threads may use one.
class WeightGuard {
 public:
  // `checkpoint` is a packed one in a mapped file.
  explicit WeightGuard(Checkpoint checkpoint);

  // To be asked before weights are read; another one each time that the file has changed.
  uint64_t version() const;
  // Whether the weights were what they must be ever since that version; false when the file was
  // written to, though its weights are what they must be now. Throws a format Error that names the
  // first tensor that is not.
  bool held_since(uint64_t version) const;

 private:
  Checkpoint checkpoint_;
  std::shared_ptr<const MappedFile> file_;
  mutable std::mutex mutex_;
  mutable FileStamp stamp_;  // of when the weights were last known
  mutable uint64_t version_ = 0;
};

}  // namespace stet
