#include "stet/kv_cache.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>

#include "stet/error.hpp"
#include "stet/memory.hpp"

namespace stet {

const char* kv_type_name(KvType type) {
  return type == KvType::f32 ? "f32" : type == KvType::bf16 ? "bf16" : "f16";
}

KvType kv_type_of(const std::string& name) {
  for (KvType type : {KvType::f32, KvType::bf16, KvType::f16}) {
    if (name == kv_type_name(type)) return type;
  }
  throw Error(ErrorKind::argument, "", "kv type", "f32, bf16 or f16", name);
}

// Memory for the blocks of one cache, reserved once. Blocks may outlive the cache (a fork holds them), so each
// keeps the pool alive, and returns its slot zeroed.
class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  BlockPool(size_t block_bytes, size_t count) : block_bytes_(block_bytes), memory_(block_bytes * count, false) {
    free_.reserve(count);
    for (size_t i = count; i > 0; --i) free_.push_back(i - 1);
  }

  // Zero-filled. Null when all slots are taken: forks still hold blocks that this cache has dropped.
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
    madvise(block, block_bytes_, MADV_DONTNEED);  // private anonymous pages read as zeros afterwards
    const std::lock_guard lock(mutex_);
    free_.push_back(slot);
  }

  const size_t block_bytes_;
  Memory memory_;
  std::mutex mutex_;
  std::vector<size_t> free_;
};

KvCache::KvCache(const KvShape& shape, int64_t capacity) : shape_(shape), capacity_(capacity) {
  const size_t count = static_cast<size_t>((capacity + kBlockPositions - 1) / kBlockPositions);
  const size_t bytes = shape.block_bytes() * count;
  try {
    pool_ = std::make_shared<BlockPool>(shape.block_bytes(), count);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorKind::capacity, "", "ctx", "positions whose keys and values fit in the address space",
                std::to_string(capacity) + " positions of " + std::to_string(bytes) + " bytes");
  }
  blocks_.reserve(count);
  visible_.reserve(count);
}

KvCache::KvCache(const KvCache& other) : KvCache(other.shape_, other.capacity_) {
  size_ = prepared_ = other.size_;
  blocks_.assign(other.blocks_.begin(), other.blocks_.end());
  visible_.assign(other.visible_.begin(), other.visible_.end());
}

std::shared_ptr<std::byte> KvCache::fresh_block() {
  if (auto block = pool_->take()) return block;
  auto memory = std::make_shared<Memory>(shape_.block_bytes(), false);
  return {memory, memory->data()};
}

void KvCache::own_block(int64_t index) {
  std::shared_ptr<std::byte>& block = blocks_[static_cast<size_t>(index)];
  // Another thread may have dropped the last other reference just now. Taking one of our own orders its reads
  // before our writes; looking at the count alone would not.
  const std::shared_ptr<std::byte> held = block;
  if (held.use_count() == 2) return;
  std::shared_ptr<std::byte> copy = fresh_block();
  std::memcpy(copy.get(), block.get(), shape_.block_bytes());
  block = std::move(copy);
}

void KvCache::prepare(int64_t count) {
  if (count > capacity_ - size_) {
    throw Error(ErrorKind::capacity, "", "tokens", "at most " + std::to_string(capacity_) + " positions (--ctx)",
                std::to_string(size_) + " + " + std::to_string(count));
  }
  const int64_t needed = (size_ + count + kBlockPositions - 1) / kBlockPositions;
  if (count > 0 && size_ % kBlockPositions != 0) own_block(size_ / kBlockPositions);
  try {
    while (blocks() < needed) {
      blocks_.push_back(fresh_block());
      visible_.push_back(~uint64_t{0});
    }
  } catch (...) {
    drop_blocks((size_ + kBlockPositions - 1) / kBlockPositions);
    throw;
  }
  prepared_ = size_ + count;
}

void KvCache::drop_blocks(int64_t kept) {
  blocks_.resize(static_cast<size_t>(kept));
  visible_.resize(static_cast<size_t>(kept));
}

void KvCache::truncate(int64_t size) {
  if (size >= prepared_) return;
  const int64_t kept = (size + kBlockPositions - 1) / kBlockPositions;
  const size_t from = static_cast<size_t>(size % kBlockPositions);
  if (from != 0) {
    own_block(kept - 1);
    const size_t element = shape_.element_size(), gone = kBlockPositions - from;
    const size_t row = static_cast<size_t>(shape_.head_dim) * element;
    for (int64_t i = 0; i < shape_.layers * shape_.kv_heads; ++i) {
      std::byte* k = writable(kept - 1) + static_cast<size_t>(i) * 2 * shape_.head_bytes();
      for (int64_t d = 0; d < shape_.head_dim; ++d) {
        std::memset(k + (static_cast<size_t>(d) * kBlockPositions + from) * element, 0, gone * element);
      }
      std::memset(k + shape_.head_bytes() + from * row, 0, gone * row);
    }
    visible_[static_cast<size_t>(kept - 1)] |= ~uint64_t{0} << from;
  }
  drop_blocks(kept);
  size_ = prepared_ = size;
}

}  // namespace stet
