// Keys and values of every layer, in blocks of 64 positions.
//
// A block is one page-aligned run of bytes: for each layer, for each kv head, K as [head_dim][64] and then V as
// [64][head_dim]. Slots of positions that are not in the cache, or that were pruned, are zero, always: the bytes of a
// block are a function of what is in it, not of its history. A full block never changes; blocks are shared between forks
// and copied before a write. A block may lie in a mapped file: then it is checked, a layer at a time, before its first use.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "stet/digest.hpp"

namespace stet {

enum class KvType : uint8_t { f32 = 0, bf16 = 1, f16 = 2 };
const char* kv_type_name(KvType type);
KvType kv_type_of(const std::string& name);  // throws an argument Error for a name that is none

// One key or value element as float32, and back: rounded once, to nearest even.
float read_element(KvType type, const std::byte* at);
void write_element(KvType type, std::byte* at, float x);

constexpr int64_t kBlockPositions = 64;

struct KvShape {
  int64_t layers = 0, kv_heads = 0, head_dim = 0;
  KvType type = KvType::f32;

  size_t element_size() const { return type == KvType::f32 ? 4 : 2; }
  size_t head_bytes() const { return static_cast<size_t>(head_dim * kBlockPositions) * element_size(); }  // K or V
  size_t layer_bytes() const { return static_cast<size_t>(kv_heads) * 2 * head_bytes(); }
  size_t k_offset(int64_t layer, int64_t head) const {
    return static_cast<size_t>(layer * kv_heads + head) * 2 * head_bytes();
  }
  size_t v_offset(int64_t layer, int64_t head) const { return k_offset(layer, head) + head_bytes(); }
  size_t content_bytes() const { return static_cast<size_t>(layers) * layer_bytes(); }
  size_t block_bytes() const { return (content_bytes() + 4095) / 4096 * 4096; }  // whole pages
  bool operator==(const KvShape&) const = default;
};

// Blocks that hold `positions` positions.
inline int64_t blocks_of(int64_t positions) { return (positions + kBlockPositions - 1) / kBlockPositions; }

// The digest of each layer's part of a block; the last part ends with the block's padding.
std::vector<Digest> layer_digests(const KvShape& shape, const std::byte* block);

// 64 positions. Immutable once full or shared; its digests are then computed at most once.
class KvBlock {
 public:
  // Memory of its own, or of a mapped file: `owner` keeps it alive.
  KvBlock(std::byte* data, std::shared_ptr<const void> owner) : data_(data), owner_(std::move(owner)) {}
  // Bytes that were not looked at yet and must have these digests: one for each layer, or one for the whole block. Such a
  // block is never written to. `file` names it in errors.
  KvBlock(const std::byte* data, std::shared_ptr<const void> owner, std::vector<Digest> digests, std::string file);

  const std::byte* data() const { return data_; }
  bool writable() const { return !checked_; }
  // Whether a layer's part is as it was written; looked at once, at the first call. Any thread may ask.
  bool check(const KvShape& shape, int64_t layer) const;
  // The same, without looking twice: false also when another thread is looking just now.
  bool known_good(const KvShape& shape, int64_t layer) const;
  bool looked_at(const KvShape& shape, int64_t layer) const;  // by anyone, or about to be
  // Layer by layer; throws a format Error that names file, block and layer.
  void check_all(const KvShape& shape, int64_t index) const;
  const std::string& file() const { return file_; }
  std::string damage(int64_t index, int64_t layer) const;  // "KV block 3, layer 1"
  // Of a block that does not change any more.
  std::vector<Digest> digests(const KvShape& shape) const;

 private:
  friend class KvCache;
  std::byte* data_;
  std::shared_ptr<const void> owner_;
  std::string file_;
  mutable std::mutex mutex_;
  mutable std::vector<Digest> digests_;  // empty: not known yet
  size_t part_of(const KvShape& shape, int64_t layer) const;
  uint8_t look(const KvShape& shape, size_t part) const;
  std::unique_ptr<std::atomic<uint8_t>[]> checked_;  // per digest; null: nothing to check
};

class BlockPool;
class MappedFile;

class KvCache {
 public:
  KvCache() = default;
  // Reserves address space for `capacity` positions at once; memory is taken as blocks are first written. Throws
  // a capacity Error when there is not that much.
  KvCache(const KvShape& shape, int64_t capacity);
  // Shares all blocks with `other`; whoever writes first copies. Nothing is reserved: a copy takes its blocks one by one.
  KvCache(const KvCache& other);
  KvCache& operator=(const KvCache&) = delete;
  KvCache(KvCache&&) noexcept = default;
  KvCache& operator=(KvCache&&) noexcept = default;

  const KvShape& shape() const { return shape_; }
  int64_t capacity() const { return capacity_; }
  int64_t size() const { return size_; }  // positions 0 .. size-1 are in the cache
  int64_t blocks() const { return static_cast<int64_t>(blocks_.size()); }

  const std::byte* block(int64_t index) const { return blocks_[static_cast<size_t>(index)]->data(); }
  const std::shared_ptr<KvBlock>& shared_block(int64_t index) const { return blocks_[static_cast<size_t>(index)]; }
  // Visible positions of a block, bit t for position 64*index + t. All ones unless pruned.
  uint64_t visible(int64_t index) const { return visible_[static_cast<size_t>(index)]; }

  // To be called before a layer of a block is read. The caller's pass goes on whatever is found, or while another thread is
  // still looking; its result must be dropped when throw_damage() throws afterwards.
  void check(int64_t index, int64_t layer) const {
    if (!blocks_[static_cast<size_t>(index)]->writable()) check_mapped(index, layer);
  }
  void throw_damage() const;
  void check_all(int threads = 1) const;  // everything, now
  // Files that blocks are mapped from. check_files() throws an io Error when one of them is no longer what it was: reading
  // a mapping beyond its file's end would end the process.
  void keep_file(std::shared_ptr<const MappedFile> file) { files_.push_back(std::move(file)); }
  void check_files() const;

  // Makes room for `count` more positions: their blocks exist, belong to this cache alone and may be written
  // through writable(). A capacity Error changes nothing. commit() then makes the positions part of the cache,
  // some at a time; until all are, the cache may not be copied.
  void prepare(int64_t count);
  std::byte* writable(int64_t index) { return blocks_[static_cast<size_t>(index)]->data_; }
  void commit(int64_t count) { size_ += count; }
  // Drops positions size .. end, those prepared included, and zeroes their slots.
  void truncate(int64_t size);
  // Positions begin .. end-1 are seen no more: their slots become zero.
  void hide(int64_t begin, int64_t end);
  // Becomes these blocks, which hold positions 0 .. size-1, with what is visible of each.
  void adopt(std::vector<std::shared_ptr<KvBlock>> blocks, std::vector<uint64_t> visible, int64_t size);
  void set_visible(int64_t index, uint64_t bits) { visible_[static_cast<size_t>(index)] = bits; }
  // A block of zeros, which costs no memory until it is written.
  std::shared_ptr<KvBlock> fresh_block();

 private:
  void own_block(int64_t index);
  void drop_blocks(int64_t kept);
  void zero_slots(int64_t index, size_t from, size_t to);
  void check_mapped(int64_t index, int64_t layer) const;

  KvShape shape_;
  int64_t capacity_ = 0, size_ = 0, prepared_ = 0;
  std::shared_ptr<BlockPool> pool_;
  std::vector<std::shared_ptr<KvBlock>> blocks_;
  std::vector<uint64_t> visible_;
  std::vector<std::shared_ptr<const MappedFile>> files_;
  // Some check() of a pass was not known to be good. Shared, so that the cache can be moved.
  std::shared_ptr<std::atomic<bool>> doubt_;
};

int64_t visible_positions(const KvCache& kv);

}  // namespace stet
