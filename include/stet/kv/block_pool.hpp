// Memory for the blocks of a KV cache.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "stet/base/memory.hpp"

namespace stet {

// Memory for the blocks of one cache, reserved once. Blocks may outlive the cache (a fork holds
// them), so each keeps the pool alive, and returns its slot zeroed.
class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  // 2 MB pages for blocks that fill them: a small model's session would take a whole one for a few
  // tokens.
  // `parts`: parts of blocks will be given back, so that pages are small.
  BlockPool(size_t block_bytes, size_t count, bool parts)
      : block_bytes_(block_bytes),
        memory_(block_bytes * count, !parts && block_bytes >= (size_t{1} << 20)) {
    if (parts) memory_.use_small_pages();
    free_.reserve(count);
    for (size_t i = count; i > 0; --i) free_.push_back(i - 1);
  }

  // Zero-filled. Null when all slots are taken: forks still hold blocks that this cache has
  // dropped.
  std::shared_ptr<std::byte> take() {
    size_t slot;
    {
      const std::lock_guard lock(mutex_);
      if (free_.empty()) return nullptr;
      slot = free_.back();
      free_.pop_back();
    }
    // Not under the lock: when this fails to allocate, it gives the slot back before it throws.
    return {memory_.data() + slot * block_bytes_,
            [pool = shared_from_this(), slot](std::byte* block) { pool->give_back(slot, block); }};
  }

 private:
  void give_back(size_t slot, std::byte* block) {
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
