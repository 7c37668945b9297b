// A block of the KV cache: keys and values of 64 consecutive positions, of every layer.
//
// A block is one page-aligned run of bytes: for each layer, for each kv head, K as [head_dim][64]
// and then V as [64][head_dim]. Slots of positions that are not in the cache, or that were pruned,
// are zero, always: the bytes of a block are a function of what is in it, not of its history.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stet/base/digest.hpp"
#include "stet/base/error.hpp"
#include "stet/base/sha256.hpp"

namespace stet {

class MappedFile;

enum class KvType : uint8_t { f32 = 0, bf16 = 1, f16 = 2 };
const char* kv_type_name(KvType type);
constexpr int kKvVersion =
    1;  // of how keys and values are rounded and laid out; a state carries it
KvType kv_type_of(const std::string& name);  // throws an argument Error for a name that is none

// Elements of keys or values as float32, and back: rounded once, to nearest even. Those in memory
// are `stride` elements apart: a key stands in a column of its block, a value in a row.
float read_element(KvType type, const std::byte* at);
void read_elements(KvType type, const std::byte* from, size_t stride, std::span<float> x);
void write_elements(KvType type, std::span<const float> x, std::byte* to, size_t stride);

constexpr int64_t kBlockPositions = 64;

struct KvShape {
  int64_t layers = 0, kv_heads = 0, head_dim = 0;
  KvType type = KvType::f32;

  size_t element_size() const { return type == KvType::f32 ? 4 : 2; }
  size_t head_bytes() const {
    return static_cast<size_t>(head_dim * kBlockPositions) * element_size();
  }  // K or V
  size_t layer_bytes() const { return static_cast<size_t>(kv_heads) * 2 * head_bytes(); }
  size_t k_offset(int64_t layer, int64_t head) const {
    return static_cast<size_t>(layer * kv_heads + head) * 2 * head_bytes();
  }
  size_t v_offset(int64_t layer, int64_t head) const {
    return k_offset(layer, head) + head_bytes();
  }
  size_t content_bytes() const { return static_cast<size_t>(layers) * layer_bytes(); }
  size_t block_bytes() const { return (content_bytes() + 4095) / 4096 * 4096; }  // whole pages
  bool operator==(const KvShape&) const = default;
};

// The digest of each layer's part of a block; the last part ends with the block's padding.
std::vector<Digest> layer_digests(const KvShape& shape, const std::byte* block);

// A block of a file that is not what was saved. Whoever has the tokens can compute it again.
class DamagedBlock : public Error {
 public:
  DamagedBlock(const std::string& file, int64_t index, int64_t layer);  // "KV block 3, layer 1"
};

// Where the bytes of a block come from that was saved, and what they must be.
struct SavedBlock {
  std::vector<Digest> digests;                // one for each layer, or one for the whole block
  std::string file;                           // names it in errors
  std::shared_ptr<const MappedFile> mapping;  // null: the bytes are in memory
};

// 64 positions: memory of its cache alone, which that may write to, or bytes that never change:
// shared by several caches, or of a file. Those of a file are compared with their digests, a layer
// at a time, before their first use.
class KvBlock {
 public:
  // Memory; `owner` keeps it alive.
  KvBlock(std::byte* data, std::shared_ptr<const void> owner)
      : data_(data), owner_(std::move(owner)) {}
  // Bytes of a file that were not looked at yet.
  KvBlock(const std::byte* data, std::shared_ptr<const void> owner, SavedBlock saved);

  const std::byte* data() const { return data_; }
  // The file that the bytes are of; null for memory.
  const SavedBlock* saved() const { return saved_.get(); }
  // The same bytes of a file, not looked at.
  std::shared_ptr<KvBlock> unlooked() const {
    return std::make_shared<KvBlock>(data_, owner_, *saved_);
  }

  // Whether several caches have it, or had it: then it never changes any more. A mark rather than a
  // count of owners, because a count that has fallen does not tell that the reads of the others are
  // over.
  bool shared() const { return shared_.load(std::memory_order_relaxed); }
  void mark_shared() const {
    if (!shared()) shared_.store(true, std::memory_order_relaxed);
  }

  // Whether a layer's part is as it was saved; looked at once, at the first call. Any thread may
  // ask.
  bool check(const KvShape& shape, int64_t layer) const;
  // The same, without looking twice: false also when another thread is looking just now.
  bool known_good(const KvShape& shape, int64_t layer) const;
  bool looked_at(const KvShape& shape, int64_t layer) const;  // by anyone, or about to be
  // Layer by layer; throws DamagedBlock, which names block `index`.
  void check_all(const KvShape& shape, int64_t index) const;
  // Whether these bytes are those that were saved.
  bool saved_as(const KvShape& shape, const std::byte* bytes) const;
  // Of a block that does not change any more; of one of a file, after check_all().
  std::vector<Digest> digests(const KvShape& shape) const;
  // Likewise: what names a block that its tokens do not give (identity.hpp).
  Sha256 content(const KvShape& shape) const;

 private:
  friend class KvCache;
  friend class KvWriter;
  size_t part_of(const KvShape& shape, int64_t layer) const;
  uint8_t look(const KvShape& shape, size_t part) const;

  std::byte* data_;
  std::shared_ptr<const void> owner_;
  mutable std::atomic<bool> shared_{false};
  mutable std::mutex mutex_;
  mutable std::vector<Digest> digests_;  // empty: not known yet
  mutable std::optional<Sha256> content_;
  std::unique_ptr<const SavedBlock> saved_;
  std::unique_ptr<std::atomic<uint8_t>[]> looked_;  // for each digest of saved_
};

}  // namespace stet
