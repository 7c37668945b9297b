// Watches weights used in place from a mapped file, which others may overwrite or truncate.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "stet/base/digest.hpp"
#include "stet/files/mapped_file.hpp"

namespace stet {

// A table in a mapped file, of which a model looks up rows.
struct MappedTable {
  std::shared_ptr<const MappedFile> file;
  std::string path, name;
  std::span<const std::byte> bytes;
  Digest digest;  // digest when it was loaded
};

// Checks the weights again whenever the file has changed. Any number of threads may share one.
class WeightGuard {
 public:
  // `check` throws a format Error naming the first tensor that is not intact.
  WeightGuard(std::shared_ptr<const MappedFile> file, std::function<void()> check);
  explicit WeightGuard(const MappedTable& table);

  // Returns a number that changes each time the file has changed. Read it before reading weights.
  uint64_t version() const;
  // Returns whether the weights have been intact ever since `version`. If the file was written to
  // meanwhile, returns false even if the weights are intact now. Throws DamagedWeights if they are not.
  bool intact_since(uint64_t version) const;

 private:
  std::shared_ptr<const MappedFile> file_;
  std::function<void()> check_;
  mutable std::mutex mutex_;
  mutable FileStamp stamp_;  // the stamp when the weights were last verified
  mutable uint64_t version_ = 0;
};

}  // namespace stet
