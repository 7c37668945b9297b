// Write access to a KV cache, for sessions, snapshots and operations on states. These callers keep
// the invariants that a cache alone cannot: every position has a token, and every change is logged.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "stet/kv/kv_cache.hpp"

namespace stet {

// Changes a KV cache. Holds a reference to it.
class KvWriter {
 public:
  explicit KvWriter(KvCache& kv) : kv_(kv) {}

  // Makes room for `count` more positions, whose blocks become private and writable(). Throws a
  // capacity Error or DamagedBlock, and changes nothing if it does. commit() then adds the
  // positions to the cache, in one or more steps. Until all are committed, the cache must not be
  // copied.
  void prepare(int64_t count);
  // Returns the bytes of a block that prepare() or own() has made private.
  std::byte* writable(int64_t index) { return kv_.blocks_[static_cast<size_t>(index)]->data_; }
  void commit(int64_t count) { kv_.size_ += count; }
  // Makes a block private, copying it if it is shared or from a file. Throws DamagedBlock.
  void own(int64_t index) { kv_.own_block(index); }
  // Copies a block of a file into memory, so that later changes of the file do not matter. Used
  // before reads outside a pass. Throws DamagedBlock.
  void load(int64_t index) {
    if (kv_.block_info(index).saved() != nullptr) kv_.own_block(index);
  }
  // Drops all positions from `size` on, including prepared ones, and zeroes their slots. Throws
  // DamagedBlock, and changes nothing if it does.
  void truncate(int64_t size);
  // Hides positions begin .. end-1 and zeroes their slots.
  void hide(int64_t begin, int64_t end);
  // Replaces the contents by these blocks, which hold positions 0 .. size-1, and their visibility
  // bits.
  void adopt(std::vector<std::shared_ptr<KvBlock>> blocks, std::vector<uint64_t> visible,
             int64_t size);
  void replace(int64_t index, std::shared_ptr<KvBlock> block) {
    kv_.blocks_[static_cast<size_t>(index)] = std::move(block);
  }
  // Returns a block for another cache to keep, and marks it shared.
  const std::shared_ptr<KvBlock>& share(int64_t index) {
    kv_.block_info(index).mark_shared();
    return kv_.blocks_[static_cast<size_t>(index)];
  }
  void set_visible(int64_t index, uint64_t bits) {
    kv_.visible_[static_cast<size_t>(index)] = bits;
  }
  // Reduces a full block to the layers of `held`, keeping the digests of all layers. Other caches
  // that share the block are not affected. Does nothing for a block from a file or with no visible
  // position.
  void drop(int64_t index, const std::shared_ptr<const HeldLayers>& held);
  // Returns a zero-filled block, which uses no memory until it is written.
  std::shared_ptr<KvBlock> fresh_block() { return kv_.fresh_block(); }

 private:
  KvCache& kv_;
};

inline void KvWriter::prepare(int64_t count) {
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

inline void KvWriter::truncate(int64_t size) {
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

inline void KvWriter::hide(int64_t begin, int64_t end) {
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

inline void KvWriter::drop(int64_t index, const std::shared_ptr<const HeldLayers>& held) {
  std::shared_ptr<KvBlock>& block = kv_.blocks_[static_cast<size_t>(index)];
  if (block->saved() != nullptr || kv_.visible(index) == 0) return;
  if (kv_.check_failed_ == nullptr) kv_.check_failed_ = std::make_shared<std::atomic<bool>>(false);
  if (!block->shared()) return block->drop(kv_.shape_, held);
  std::shared_ptr<KvBlock> copy = kv_.fresh_block();
  for (int64_t layer = 0; layer < kv_.shape_.layers; ++layer) {
    const size_t at = kv_.shape_.layer_offset(layer);
    if ((*held)[static_cast<size_t>(layer)])
      std::copy_n(block->data_ + at, kv_.shape_.layer_bytes(layer), copy->data_ + at);
  }
  copy->digests_ = block->digests(kv_.shape_);
  copy->drop(kv_.shape_, held);
  block = std::move(copy);
}

inline void KvWriter::adopt(std::vector<std::shared_ptr<KvBlock>> blocks,
                            std::vector<uint64_t> visible, int64_t size) {
  kv_.mappings_.clear();
  kv_.check_failed_ = std::make_shared<std::atomic<bool>>(false);
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
