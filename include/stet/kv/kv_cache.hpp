// The KV cache: keys and values of every layer, in blocks of 64 positions (kv_block.hpp). Full
// blocks are immutable. Forks share blocks and copy them before a write. Blocks mapped from a file
// are checked before their first use.
//
// Only sessions and the operations of state.hpp change a cache, because they log each change.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "stet/base/error.hpp"
#include "stet/files/mapped_file.hpp"
#include "stet/kv/block_pool.hpp"
#include "stet/kv/kv_block.hpp"
#include "stet/threads/team.hpp"

namespace stet {

// Returns the number of blocks needed for `positions` positions.
inline int64_t blocks_of(int64_t positions) {
  return (positions + kBlockPositions - 1) / kBlockPositions;
}

// The keys, values and visibility of a session's positions. Copies share blocks. The threads of a
// pass may call const functions at once.
class KvCache {
 public:
  KvCache() = default;
  // Reserves address space for `capacity` positions at once. Memory is allocated as blocks are
  // first written. Throws a capacity Error when address space is short. `parts` says that parts of
  // blocks will be freed (KvWriter::drop).
  KvCache(const KvShape& shape, int64_t capacity, bool parts = false);
  // Shares all blocks with `other`; the first writer copies. Reserves nothing: a copy allocates its
  // blocks one by one.
  KvCache(const KvCache& other);
  KvCache& operator=(const KvCache&) = delete;
  KvCache(KvCache&&) noexcept = default;
  KvCache& operator=(KvCache&&) noexcept = default;

  const KvShape& shape() const { return shape_; }
  int64_t capacity() const { return capacity_; }
  // Sets a smaller capacity, but not less than size().
  void lower_capacity(int64_t capacity) {
    capacity_ = std::max(size_, std::min(capacity_, capacity));
  }
  int64_t size() const { return size_; }  // the cache holds positions 0 .. size-1
  int64_t blocks() const { return static_cast<int64_t>(blocks_.size()); }

  // Returns the bytes of a block. Checks every layer first if the block is from a file. Throws
  // DamagedBlock if they are not the saved bytes.
  const std::byte* block(int64_t index) const;
  // Returns the bytes of a block without checking them. Call check() before reading a layer. If the
  // mapped file was truncated, the missing bytes read as zeros.
  const std::byte* unchecked_block(int64_t index) const {
    return blocks_[static_cast<size_t>(index)]->data();
  }
  // Returns the block's digests and origin.
  const KvBlock& block_info(int64_t index) const { return *blocks_[static_cast<size_t>(index)]; }
  // Returns the visible positions of a block: bit t is that of position 64*index + t. All bits are
  // set unless the state was pruned.
  uint64_t visible(int64_t index) const { return visible_[static_cast<size_t>(index)]; }

  // Checks one layer of a block; call it before a pass reads that layer. The pass continues in any
  // case, even while another thread is still checking. Its result counts only if pass_is_valid()
  // then returns true.
  void check(int64_t index, int64_t layer) const {
    if (block_info(index).saved() != nullptr) check_saved(index, shape_.owner(layer));
  }
  // Returns true if every check() of the pass succeeded and no mapped file has changed since its
  // blocks were checked.
  bool pass_is_valid() const;
  // Returns the indices of damaged blocks. Blocks of files that have changed are checked again.
  // `again` considers only blocks that were checked before; `all_blocks` considers all. A layer that a
  // block does not hold counts as damaged if a pass requested it.
  enum class Look { all_blocks, again };
  std::vector<int64_t> find_damage(Look look, int threads);
  // Checks every layer that the blocks hold. Throws DamagedBlock.
  void check_all(int threads = 1) const;

 private:
  friend class KvWriter;  // writes to the cache (kv_writer.hpp)
  // A file that blocks are mapped from, with its stamp when they were last checked.
  struct Mapping {
    std::shared_ptr<const MappedFile> file;
    FileStamp stamp;
  };

  void own_block(int64_t index);
  std::shared_ptr<KvBlock> fresh_block();
  void drop_blocks(int64_t kept);
  void zero_slots(int64_t index, size_t from, size_t to);
  void check_saved(int64_t index, int64_t layer) const;
  std::vector<int64_t> saved_blocks() const;
  std::vector<bool> uncheck_changed_files();

  KvShape shape_;
  int64_t capacity_ = 0, size_ = 0, prepared_ = 0;
  std::shared_ptr<BlockPool> pool_;
  std::vector<std::shared_ptr<KvBlock>> blocks_;
  std::vector<uint64_t> visible_;
  std::vector<Mapping> mappings_;
  // Set when a check() of the current pass did not succeed. Null if no block can be from a file.
  // Held by pointer so that the cache can be moved.
  std::shared_ptr<std::atomic<bool>> check_failed_;
};

// Returns the number of visible positions.
int64_t visible_positions(const KvCache& kv);

inline KvCache::KvCache(const KvShape& shape, int64_t capacity, bool parts)
    : shape_(shape), capacity_(capacity) {
  const size_t count = static_cast<size_t>(blocks_of(capacity));
  const size_t bytes = shape.block_bytes() * count;
  try {
    pool_ = std::make_shared<BlockPool>(shape.block_bytes(), count, parts);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorKind::capacity, "", "ctx",
                "positions whose keys and values fit in the address space",
                std::to_string(capacity) + " positions of " + std::to_string(bytes) + " bytes");
  }
  blocks_.reserve(count);
  visible_.reserve(count);
}

inline KvCache::KvCache(const KvCache& other)
    : shape_(other.shape_),
      capacity_(other.capacity_),
      size_(other.size_),
      prepared_(other.size_),
      blocks_(other.blocks_),
      visible_(other.visible_),
      mappings_(other.mappings_),
      check_failed_(other.check_failed_ == nullptr ? nullptr
                                                   : std::make_shared<std::atomic<bool>>(false)) {
  for (const std::shared_ptr<KvBlock>& block : blocks_) block->mark_shared();
}

inline const std::byte* KvCache::block(int64_t index) const {
  const KvBlock& block = block_info(index);
  block.check_all(shape_, index);
  return block.data();
}

inline std::shared_ptr<KvBlock> KvCache::fresh_block() {
  if (pool_ != nullptr) {
    if (auto slot = pool_->take()) return std::make_shared<KvBlock>(slot.get(), slot);
  }
  auto memory = std::make_shared<Memory>(shape_.block_bytes(), false);
  return std::make_shared<KvBlock>(memory->data(), memory);
}

// Makes the block private and writable, and clears its cached digests. For a saved block, the
// digests are compared with the copy, which no other process can change.
inline void KvCache::own_block(int64_t index) {
  std::shared_ptr<KvBlock>& block = blocks_[static_cast<size_t>(index)];
  if (block->saved() == nullptr && !block->shared()) {
    block->digests_.clear();
    block->content_.reset();
    return;
  }
  if (!block->holds_all()) block->check_all(shape_, index);
  std::shared_ptr<KvBlock> copy = fresh_block();
  std::copy_n(block->data_, shape_.block_bytes(), copy->data_);  // none without attention layers
  if (block->saved() != nullptr && !block->saved_as(shape_, copy->data_)) {
    block = block->unchecked_copy();
    block->check_all(shape_, index);  // names the damaged layer in its error
    throw DamagedBlock(block->saved()->file, index, 0);
  }
  block = std::move(copy);
}

inline void KvCache::drop_blocks(int64_t kept) {
  blocks_.resize(static_cast<size_t>(kept));
  visible_.resize(static_cast<size_t>(kept));
}

inline void KvCache::zero_slots(int64_t index, size_t from, size_t to) {
  std::byte* const data = blocks_[static_cast<size_t>(index)]->data_;
  const size_t element = shape_.element_size(),
               scale = shape_.type == KvType::q8 ? sizeof(float) : 0;
  const auto zero_scales = [&](std::byte* part, int64_t dim) {
    std::memset(part + shape_.elements_bytes(dim) + from * scale, 0, (to - from) * scale);
  };
  for (int64_t layer = 0; layer < shape_.layers; ++layer) {
    const KvLayer l = shape_.layer(layer);
    const size_t row = static_cast<size_t>(l.value_dim) * element;
    for (int64_t head = 0; shape_.owns(layer) && head < l.kv_heads; ++head) {
      std::byte *const k = data + shape_.k_offset(layer, head), *const v = data + shape_.v_offset(
                                                                                      layer, head);
      for (int64_t d = 0; d < l.key_dim; ++d) {
        std::memset(k + (static_cast<size_t>(d) * kBlockPositions + from) * element, 0,
                    (to - from) * element);
      }
      std::memset(v + from * row, 0, (to - from) * row);
      zero_scales(k, l.key_dim);
      zero_scales(v, l.value_dim);
    }
  }
}

inline int64_t visible_positions(const KvCache& kv) {
  int64_t n = 0;
  for (int64_t at = 0; at < kv.size(); ++at)
    n += static_cast<int64_t>(kv.visible(at / kBlockPositions) >> (at % kBlockPositions) & 1);
  return n;
}

inline void KvCache::check_saved(int64_t index, int64_t layer) const {
  if (!block_info(index).check_layer_once(shape_, layer))
    check_failed_->store(true, std::memory_order_relaxed);
}

// The stamp also catches a file that changed before or during the pass.
inline bool KvCache::pass_is_valid() const {
  if (check_failed_ != nullptr && check_failed_->exchange(false)) return false;
  return std::ranges::all_of(mappings_,
                             [](const Mapping& m) { return m.file->stamp() == m.stamp; });
}

inline std::vector<int64_t> KvCache::saved_blocks() const {
  std::vector<int64_t> found;
  for (int64_t b = 0; b < blocks(); ++b) {
    if (block_info(b).saved() != nullptr) found.push_back(b);
  }
  return found;
}

// Discards the check results of blocks whose file has changed. Replaces the blocks in this cache
// only, because another cache's pass may be checking the old ones. Returns one flag per block.
inline std::vector<bool> KvCache::uncheck_changed_files() {
  std::vector<bool> forgotten(blocks_.size());
  for (Mapping& m : mappings_) {
    const FileStamp now = m.file->stamp();
    if (now == m.stamp) continue;
    m.stamp = now;
    for (const int64_t b : saved_blocks()) {
      std::shared_ptr<KvBlock>& block = blocks_[static_cast<size_t>(b)];
      if (block->saved()->mapping != m.file) continue;
      block = block->unchecked_copy();
      forgotten[static_cast<size_t>(b)] = true;
    }
  }
  return forgotten;
}

inline std::vector<int64_t> KvCache::find_damage(Look look, int threads) {
  const std::vector<bool> forgotten = uncheck_changed_files();
  const std::vector<int64_t> saved = saved_blocks();
  const size_t layers = static_cast<size_t>(shape_.layers);
  std::vector<uint8_t> good(saved.size() * layers, 1);
  if (saved.empty()) return {};
  run_each(threads, good.size(), [&](size_t i) {
    const int64_t b = saved[i / layers], layer = static_cast<int64_t>(i % layers);
    const KvBlock& block = block_info(b);
    if (!block.holds(layer) && !block.was_checked(layer)) return;
    if (look == Look::again && !forgotten[static_cast<size_t>(b)] && !block.was_checked(layer))
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

inline void KvCache::check_all(int threads) const {
  const std::vector<int64_t> saved = saved_blocks();
  if (saved.empty()) return;
  const size_t layers = static_cast<size_t>(shape_.layers);
  run_each(threads, saved.size() * layers, [&](size_t i) {
    const KvBlock& block = block_info(saved[i / layers]);
    const auto layer = static_cast<int64_t>(i % layers);
    if (block.holds(layer)) block.check(shape_, layer);
  });
  for (const int64_t b : saved) block_info(b).check_held(shape_, b);
}

}  // namespace stet
