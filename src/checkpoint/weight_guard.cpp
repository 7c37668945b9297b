#include "src/checkpoint/weight_guard.hpp"

#include <utility>

#include "src/checkpoint/packed.hpp"

namespace stet {

WeightGuard::WeightGuard(Checkpoint checkpoint)
    : checkpoint_(std::move(checkpoint)),
      file_(checkpoint_.files().front()->mapping()),
      stamp_(file_->opened()) {}

uint64_t WeightGuard::version() const {
  const std::lock_guard lock(mutex_);
  return version_;
}

bool WeightGuard::intact_since(uint64_t version) const {
  const std::lock_guard lock(mutex_);
  const FileStamp now = file_->stamp();
  if (now == stamp_) return version == version_;
  check_packed(checkpoint_, 0);
  stamp_ = now;
  ++version_;
  return false;
}

}  // namespace stet
