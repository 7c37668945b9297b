// What changes a KV cache: for sessions, snapshots and the operations on states, which keep the
// rules that a cache alone cannot (positions are those of tokens; what was changed stands in a
// log).
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "stet/kv/kv_cache.hpp"

namespace stet {

class KvWriter {
 public:
  explicit KvWriter(KvCache& kv) : kv_(kv) {}

  // Makes room for `count` more positions: their blocks exist, belong to this cache alone and may
  // be written through writable(). A capacity Error, or DamagedBlock, changes nothing. commit()
  // then makes the positions part of the cache, some at a time; until all are, the cache may not be
  // copied.
  void prepare(int64_t count);
  // A block that prepare() or own() has made this cache's alone.
  std::byte* writable(int64_t index) { return kv_.blocks_[static_cast<size_t>(index)]->data_; }
  void commit(int64_t count) { kv_.size_ += count; }
  // Makes a block this cache's alone, by a copy where it is shared or of a file. Throws
  // DamagedBlock.
  void own(int64_t index) { kv_.own_block(index); }
  // Takes a block of a file into memory, before it is read outside of a pass: what happens to the
  // file later is no matter then. Throws DamagedBlock.
  void load(int64_t index) {
    if (kv_.block_info(index).saved() != nullptr) kv_.own_block(index);
  }
  // Drops positions size .. end, those prepared included, and zeroes their slots. DamagedBlock
  // changes nothing.
  void truncate(int64_t size);
  // Positions begin .. end-1 are seen no more: their slots become zero.
  void hide(int64_t begin, int64_t end);
  // Becomes these blocks, which hold positions 0 .. size-1, with what is visible of each.
  void adopt(std::vector<std::shared_ptr<KvBlock>> blocks, std::vector<uint64_t> visible,
             int64_t size);
  void replace(int64_t index, std::shared_ptr<KvBlock> block) {
    kv_.blocks_[static_cast<size_t>(index)] = std::move(block);
  }
  // For another cache, which keeps it.
  const std::shared_ptr<KvBlock>& share(int64_t index) {
    kv_.block_info(index).mark_shared();
    return kv_.blocks_[static_cast<size_t>(index)];
  }
  void set_visible(int64_t index, uint64_t bits) {
    kv_.visible_[static_cast<size_t>(index)] = bits;
  }
  // A block of zeros, which costs no memory until it is written.
  std::shared_ptr<KvBlock> fresh_block() { return kv_.fresh_block(); }

 private:
  KvCache& kv_;
};

}  // namespace stet
