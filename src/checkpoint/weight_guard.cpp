#include "src/checkpoint/weight_guard.hpp"

#include <utility>

#include "stet/base/error.hpp"
#include "stet/model/damaged_weights.hpp"

namespace stet {

WeightGuard::WeightGuard(std::shared_ptr<const MappedFile> file, std::function<void()> check)
    : file_(std::move(file)), check_(std::move(check)), stamp_(file_->opened()) {}

WeightGuard::WeightGuard(const MappedTable& table)
    : WeightGuard(table.file, [table] {
        const Digest found = digest_of(table.bytes);
        if (!(found == table.digest))
          throw Error(ErrorKind::format, table.path, table.name, digest_text(table.digest),
                      digest_text(found));
      }) {}

uint64_t WeightGuard::version() const {
  const std::lock_guard lock(mutex_);
  return version_;
}

bool WeightGuard::intact_since(uint64_t version) const {
  const std::lock_guard lock(mutex_);
  const FileStamp now = file_->stamp();
  if (now == stamp_) return version == version_;
  try {
    check_();
  } catch (const Error& e) {
    throw DamagedWeights(e);
  }
  stamp_ = now;
  ++version_;
  return false;
}

}  // namespace stet
