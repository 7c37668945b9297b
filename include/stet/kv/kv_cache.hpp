// Keys and values of every layer, in blocks of 64 positions (kv_block.hpp). A full block never
// changes; blocks are shared between forks and copied before a write. A block may lie in a mapped
// file: then it is checked before its first use.
//
// What a cache holds is changed by sessions and by the operations of state.hpp, which keep a log of
// it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "stet/files/mapped_file.hpp"
#include "stet/kv/kv_block.hpp"

namespace stet {

// Blocks that hold `positions` positions.
inline int64_t blocks_of(int64_t positions) {
  return (positions + kBlockPositions - 1) / kBlockPositions;
}

class BlockPool;

class KvCache {
 public:
  KvCache() = default;
  // Reserves address space for `capacity` positions at once; memory is taken as blocks are first
  // written. Throws a capacity Error when there is not that much.
  KvCache(const KvShape& shape, int64_t capacity);
  // Shares all blocks with `other`; whoever writes first copies. Nothing is reserved: a copy takes
  // its blocks one by one.
  KvCache(const KvCache& other);
  KvCache& operator=(const KvCache&) = delete;
  KvCache(KvCache&&) noexcept = default;
  KvCache& operator=(KvCache&&) noexcept = default;

  const KvShape& shape() const { return shape_; }
  int64_t capacity() const { return capacity_; }
  int64_t size() const { return size_; }  // positions 0 .. size-1 are in the cache
  int64_t blocks() const { return static_cast<int64_t>(blocks_.size()); }

  // The bytes of a block. Those of a file are looked at first; throws DamagedBlock when they are
  // not what was saved.
  const std::byte* block(int64_t index) const;
  // For whoever calls check() before reading a layer: what a cut-off file lacks reads as zeros.
  const std::byte* unchecked_block(int64_t index) const {
    return blocks_[static_cast<size_t>(index)]->data();
  }
  // Digests, and where the block comes from.
  const KvBlock& block_info(int64_t index) const { return *blocks_[static_cast<size_t>(index)]; }
  // Visible positions of a block, bit t for position 64*index + t. All ones unless pruned.
  uint64_t visible(int64_t index) const { return visible_[static_cast<size_t>(index)]; }

  // To be called before a layer of a block is read in a pass. The pass goes on whatever is found,
  // or while another thread is still looking; its result counts only if pass_was_sound() says so
  // afterwards.
  void check(int64_t index, int64_t layer) const {
    if (block_info(index).saved() != nullptr) check_saved(index, layer);
  }
  // Whether all that check() was asked for is as it was saved, and no mapped file has changed since
  // it was looked at.
  bool pass_was_sound() const;
  // Blocks that are not what was saved, after looking again at those of files that have changed: of
  // all blocks, or of those that were looked at before.
  enum class Look { at_all, again };
  std::vector<int64_t> find_damage(Look look, int threads);
  // Looks at everything now. Throws DamagedBlock.
  void check_all(int threads = 1) const;

 private:
  friend class KvWriter;  // src/kv_writer.hpp: what changes the cache
  // A file that blocks are mapped from, and its stamp of when they were last looked at.
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
  std::vector<bool> forget_changed_files();

  KvShape shape_;
  int64_t capacity_ = 0, size_ = 0, prepared_ = 0;
  std::shared_ptr<BlockPool> pool_;
  std::vector<std::shared_ptr<KvBlock>> blocks_;
  std::vector<uint64_t> visible_;
  std::vector<Mapping> mappings_;
  // Some check() of a pass was not known to be good. Null where no block can be of a file; shared,
  // so that the cache can be moved.
  std::shared_ptr<std::atomic<bool>> doubt_;
};

int64_t visible_positions(const KvCache& kv);

}  // namespace stet
