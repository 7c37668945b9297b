// Memory for the blocks of a KV cache.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "stet/base/memory.hpp"

namespace stet {

// A fixed pool of zero-filled memory for the blocks of one cache. Blocks may outlive the cache
// because forks share them. Each block therefore keeps the pool alive and returns its slot zeroed.
class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  // Reserves address space for `count` blocks. Throws std::bad_alloc when there is not enough.
  // Blocks of 1 MB or more use 2 MB pages. If `parts`, parts of blocks will be released later, so 4
  // KB pages are used.
  BlockPool(size_t block_bytes, size_t count, bool parts)
      : block_bytes_(block_bytes),
        memory_(block_bytes * count, !parts && block_bytes >= (size_t{1} << 20)) {
    if (parts) memory_.use_small_pages();
    free_.reserve(count);
    for (size_t i = count; i > 0; --i) free_.push_back(i - 1);
  }

  // Returns a zero-filled block, or null when forks still hold every slot. Any thread may call it.
  std::shared_ptr<std::byte> take() {
    size_t slot;
    {
      const std::lock_guard lock(mutex_);
      if (free_.empty()) return nullptr;
      slot = free_.back();
      free_.pop_back();
    }
    // The lock is not held here: if the allocation throws, its cleanup takes the lock in
    // return_slot().
    return {
        memory_.data() + slot * block_bytes_,
        [pool = shared_from_this(), slot](std::byte* block) { pool->return_slot(slot, block); }};
  }

 private:
  void return_slot(size_t slot, std::byte* block) {
    memory_.release(static_cast<size_t>(block - memory_.data()), block_bytes_);
    const std::lock_guard lock(mutex_);
    free_.push_back(slot);
  }

  const size_t block_bytes_;
  Memory memory_;
  std::mutex mutex_;
  std::vector<size_t> free_;
};

}  // namespace stet
