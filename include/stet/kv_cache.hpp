// Keys and values of every layer, in blocks of 64 positions.
//
// A block is one page-aligned run of bytes: for each layer, for each kv head, K as [head_dim][64] and then V as
// [64][head_dim]. Slots of positions that are not in the cache are zero, always: the bytes of a block are a
// function of what is in it, not of its history. A full block never changes; blocks are shared between forks
// and copied before a write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace stet {

enum class KvType : uint8_t { f32 = 0, bf16 = 1, f16 = 2 };
const char* kv_type_name(KvType type);
KvType kv_type_of(const std::string& name);  // throws an argument Error for a name that is none

constexpr int64_t kBlockPositions = 64;

struct KvShape {
  int64_t layers = 0, kv_heads = 0, head_dim = 0;
  KvType type = KvType::f32;

  size_t element_size() const { return type == KvType::f32 ? 4 : 2; }
  size_t head_bytes() const { return static_cast<size_t>(head_dim * kBlockPositions) * element_size(); }  // K or V
  size_t k_offset(int64_t layer, int64_t head) const {
    return static_cast<size_t>(layer * kv_heads + head) * 2 * head_bytes();
  }
  size_t v_offset(int64_t layer, int64_t head) const { return k_offset(layer, head) + head_bytes(); }
  size_t content_bytes() const { return static_cast<size_t>(layers * kv_heads) * 2 * head_bytes(); }
  size_t block_bytes() const { return (content_bytes() + 4095) / 4096 * 4096; }  // whole pages
  bool operator==(const KvShape&) const = default;
};

class BlockPool;

class KvCache {
 public:
  // Reserves address space for `capacity` positions at once; memory is taken as blocks are first written. Throws
  // a capacity Error when there is not that much.
  KvCache(const KvShape& shape, int64_t capacity);
  // Shares all blocks with `other`; whoever writes first copies. The pool of memory is not shared.
  KvCache(const KvCache& other);
  KvCache& operator=(const KvCache&) = delete;
  KvCache(KvCache&&) noexcept = default;
  KvCache& operator=(KvCache&&) noexcept = default;

  const KvShape& shape() const { return shape_; }
  int64_t capacity() const { return capacity_; }
  int64_t size() const { return size_; }  // positions 0 .. size-1 are in the cache
  int64_t blocks() const { return static_cast<int64_t>(blocks_.size()); }

  const std::byte* block(int64_t index) const { return blocks_[static_cast<size_t>(index)].get(); }
  // Visible positions of a block, bit t for position 64*index + t. All ones unless pruned.
  uint64_t visible(int64_t index) const { return visible_[static_cast<size_t>(index)]; }

  void set_visible(int64_t index, uint64_t bits) { visible_[static_cast<size_t>(index)] = bits; }

  // Makes room for `count` more positions: their blocks exist, belong to this cache alone and may be written
  // through writable(). A capacity Error changes nothing. commit() then makes the positions part of the cache,
  // some at a time; until all are, the cache may not be copied.
  void prepare(int64_t count);
  std::byte* writable(int64_t index) { return blocks_[static_cast<size_t>(index)].get(); }
  void commit(int64_t count) { size_ += count; }
  bool pending() const { return prepared_ != size_; }  // positions were prepared and are not committed
  // Drops positions size .. end, those prepared included, and zeroes their slots.
  void truncate(int64_t size);

 private:
  std::shared_ptr<std::byte> fresh_block();
  void own_block(int64_t index);
  void drop_blocks(int64_t kept);

  KvShape shape_;
  int64_t capacity_ = 0, size_ = 0, prepared_ = 0;
  std::shared_ptr<BlockPool> pool_;
  std::vector<std::shared_ptr<std::byte>> blocks_;
  std::vector<uint64_t> visible_;
};

}  // namespace stet
