#include "stet/kv/kv_cache.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>

#include "stet/base/error.hpp"
#include "stet/base/memory.hpp"
#include "stet/kv/kv_writer.hpp"
#include "stet/threads/team.hpp"

namespace stet {

// ---------------------------------------------------------------- memory

// Memory for the blocks of one cache, reserved once. Blocks may outlive the cache (a fork holds
// them), so each keeps the pool alive, and returns its slot zeroed.
class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  // 2 MB pages for blocks that fill them: a small model's session would take a whole one for a few
  // tokens.
  BlockPool(size_t block_bytes, size_t count)
      : block_bytes_(block_bytes), memory_(block_bytes * count, block_bytes >= (size_t{1} << 20)) {
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
    madvise(block, block_bytes_,
            MADV_DONTNEED);  // private anonymous pages read as zeros afterwards
    const std::lock_guard lock(mutex_);
    free_.push_back(slot);
  }

  const size_t block_bytes_;
  Memory memory_;
  std::mutex mutex_;
  std::vector<size_t> free_;
};

// ---------------------------------------------------------------- the cache

KvCache::KvCache(const KvShape& shape, int64_t capacity) : shape_(shape), capacity_(capacity) {
  const size_t count = static_cast<size_t>(blocks_of(capacity));
  const size_t bytes = shape.block_bytes() * count;
  try {
    pool_ = std::make_shared<BlockPool>(shape.block_bytes(), count);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorKind::capacity, "", "ctx",
                "positions whose keys and values fit in the address space",
                std::to_string(capacity) + " positions of " + std::to_string(bytes) + " bytes");
  }
  blocks_.reserve(count);
  visible_.reserve(count);
}

KvCache::KvCache(const KvCache& other)
    : shape_(other.shape_),
      capacity_(other.capacity_),
      size_(other.size_),
      prepared_(other.size_),
      blocks_(other.blocks_),
      visible_(other.visible_),
      mappings_(other.mappings_),
      doubt_(other.doubt_ == nullptr ? nullptr : std::make_shared<std::atomic<bool>>(false)) {
  for (const std::shared_ptr<KvBlock>& block : blocks_) block->mark_shared();
}

const std::byte* KvCache::block(int64_t index) const {
  const KvBlock& block = block_info(index);
  block.check_all(shape_, index);
  return block.data();
}

std::shared_ptr<KvBlock> KvCache::fresh_block() {
  if (pool_ != nullptr) {
    if (auto slot = pool_->take()) return std::make_shared<KvBlock>(slot.get(), slot);
  }
  auto memory = std::make_shared<Memory>(shape_.block_bytes(), false);
  return std::make_shared<KvBlock>(memory->data(), memory);
}

// Before a write: the block becomes this cache's alone, and forgets what is known of its bytes.
// What comes from a file is judged by the copy, which nobody else can change.
void KvCache::own_block(int64_t index) {
  std::shared_ptr<KvBlock>& block = blocks_[static_cast<size_t>(index)];
  if (block->saved() == nullptr && !block->shared()) {
    block->digests_.clear();
    block->content_.reset();
    return;
  }
  std::shared_ptr<KvBlock> copy = fresh_block();
  std::memcpy(copy->data_, block->data_, shape_.block_bytes());
  if (block->saved() != nullptr && !block->saved_as(shape_, copy->data_)) {
    block = block->unlooked();
    block->check_all(shape_, index);  // names the layer
    throw DamagedBlock(block->saved()->file, index, 0);
  }
  block = std::move(copy);
}

void KvCache::drop_blocks(int64_t kept) {
  blocks_.resize(static_cast<size_t>(kept));
  visible_.resize(static_cast<size_t>(kept));
}

void KvCache::zero_slots(int64_t index, size_t from, size_t to) {
  const size_t element = shape_.element_size(),
               row = static_cast<size_t>(shape_.head_dim) * element;
  for (int64_t i = 0; i < shape_.layers * shape_.kv_heads; ++i) {
    std::byte* k = blocks_[static_cast<size_t>(index)]->data_ +
                   static_cast<size_t>(i) * 2 * shape_.head_bytes();
    for (int64_t d = 0; d < shape_.head_dim; ++d) {
      std::memset(k + (static_cast<size_t>(d) * kBlockPositions + from) * element, 0,
                  (to - from) * element);
    }
    std::memset(k + shape_.head_bytes() + from * row, 0, (to - from) * row);
  }
}

int64_t visible_positions(const KvCache& kv) {
  int64_t n = 0;
  for (int64_t at = 0; at < kv.size(); ++at)
    n += static_cast<int64_t>(kv.visible(at / kBlockPositions) >> (at % kBlockPositions) & 1);
  return n;
}

void KvCache::check_saved(int64_t index, int64_t layer) const {
  if (!block_info(index).known_good(shape_, layer)) doubt_->store(true, std::memory_order_relaxed);
}

// A file that changed before or during the pass is seen by its stamp afterwards.
bool KvCache::pass_was_sound() const {
  if (doubt_ != nullptr && doubt_->exchange(false)) return false;
  return std::ranges::all_of(mappings_,
                             [](const Mapping& m) { return m.file->stamp() == m.stamp; });
}

std::vector<int64_t> KvCache::saved_blocks() const {
  std::vector<int64_t> found;
  for (int64_t b = 0; b < blocks(); ++b) {
    if (block_info(b).saved() != nullptr) found.push_back(b);
  }
  return found;
}

// What is known of blocks of files that have changed is forgotten, by this cache alone: another's
// pass may be looking at them. Returns which blocks that was.
std::vector<bool> KvCache::forget_changed_files() {
  std::vector<bool> forgotten(blocks_.size());
  for (Mapping& m : mappings_) {
    const FileStamp now = m.file->stamp();
    if (now == m.stamp) continue;
    m.stamp = now;
    for (const int64_t b : saved_blocks()) {
      std::shared_ptr<KvBlock>& block = blocks_[static_cast<size_t>(b)];
      if (block->saved()->mapping != m.file) continue;
      block = block->unlooked();
      forgotten[static_cast<size_t>(b)] = true;
    }
  }
  return forgotten;
}

std::vector<int64_t> KvCache::find_damage(Look look, int threads) {
  const std::vector<bool> forgotten = forget_changed_files();
  const std::vector<int64_t> saved = saved_blocks();
  const size_t layers = static_cast<size_t>(shape_.layers);
  std::vector<uint8_t> good(saved.size() * layers, 1);
  if (saved.empty()) return {};
  run_each(threads, good.size(), [&](size_t i) {
    const int64_t b = saved[i / layers], layer = static_cast<int64_t>(i % layers);
    const KvBlock& block = block_info(b);
    if (look == Look::again && !forgotten[static_cast<size_t>(b)] &&
        !block.looked_at(shape_, layer))
      return;
    good[i] = block.check(shape_, layer);
  });
  std::vector<int64_t> damaged;
  for (size_t i = 0; i < saved.size(); ++i) {
    const auto begin = good.begin() + static_cast<std::ptrdiff_t>(i * layers);
    if (std::count(begin, begin + static_cast<std::ptrdiff_t>(layers), 0) > 0)
      damaged.push_back(saved[i]);
  }
  return damaged;
}

void KvCache::check_all(int threads) const {
  const std::vector<int64_t> saved = saved_blocks();
  if (saved.empty()) return;
  const size_t layers = static_cast<size_t>(shape_.layers);
  run_each(threads, saved.size() * layers, [&](size_t i) {
    block_info(saved[i / layers]).check(shape_, static_cast<int64_t>(i % layers));
  });
  for (const int64_t b : saved) block_info(b).check_all(shape_, b);
}

// ---------------------------------------------------------------- changes

void KvWriter::prepare(int64_t count) {
  if (count > kv_.capacity_ - kv_.size_) {
    throw Error(ErrorKind::capacity, "", "tokens",
                "at most " + std::to_string(kv_.capacity_) + " positions (--ctx)",
                std::to_string(kv_.size_) + " + " + std::to_string(count));
  }
  const int64_t needed = blocks_of(kv_.size_ + count);
  if (count > 0 && kv_.size_ % kBlockPositions != 0) kv_.own_block(kv_.size_ / kBlockPositions);
  try {
    while (kv_.blocks() < needed) {
      kv_.blocks_.push_back(kv_.fresh_block());
      kv_.visible_.push_back(~uint64_t{0});
    }
  } catch (...) {
    kv_.drop_blocks(blocks_of(kv_.size_));
    throw;
  }
  kv_.prepared_ = kv_.size_ + count;
}

void KvWriter::truncate(int64_t size) {
  if (size >= kv_.prepared_) return;
  const int64_t kept = blocks_of(size);
  const size_t from = static_cast<size_t>(size % kBlockPositions);
  if (from != 0) {
    kv_.own_block(kept - 1);
    kv_.zero_slots(kept - 1, from, kBlockPositions);
    kv_.visible_[static_cast<size_t>(kept - 1)] |= ~uint64_t{0} << from;
  }
  kv_.drop_blocks(kept);
  kv_.size_ = kv_.prepared_ = size;
}

void KvWriter::hide(int64_t begin, int64_t end) {
  for (int64_t at = begin; at < end;) {
    const int64_t index = at / kBlockPositions, stop = std::min(end, (index + 1) * kBlockPositions);
    const size_t from = static_cast<size_t>(at % kBlockPositions),
                 count = static_cast<size_t>(stop - at);
    const uint64_t bits = (count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << from;
    uint64_t& visible = kv_.visible_[static_cast<size_t>(index)];
    at = stop;
    if ((visible & bits) == 0) continue;  // zero already
    visible &= ~bits;
    if (visible == 0) {
      kv_.blocks_[static_cast<size_t>(index)] = kv_.fresh_block();
    } else {
      kv_.own_block(index);
      kv_.zero_slots(index, from, from + count);
    }
  }
}

void KvWriter::adopt(std::vector<std::shared_ptr<KvBlock>> blocks, std::vector<uint64_t> visible,
                     int64_t size) {
  kv_.mappings_.clear();
  kv_.doubt_ = std::make_shared<std::atomic<bool>>(false);
  for (const std::shared_ptr<KvBlock>& block : blocks) {
    if (block->saved() == nullptr || block->saved()->mapping == nullptr) continue;
    const std::shared_ptr<const MappedFile>& file = block->saved()->mapping;
    const bool known = std::ranges::any_of(
        kv_.mappings_, [&](const KvCache::Mapping& m) { return m.file == file; });
    if (!known) kv_.mappings_.push_back({file, file->opened()});
  }
  kv_.blocks_ = std::move(blocks);
  kv_.visible_ = std::move(visible);
  kv_.size_ = kv_.prepared_ = size;
}

}  // namespace stet
