// A block of the KV cache: keys and values of 64 consecutive positions, of every layer.
//
// A block is one page-aligned run of bytes: for each layer, for each kv head, K as [head_dim][64]
// and then V as [64][head_dim]; of type q8 each of the two with [64] float32 scales behind it.
// Slots of positions that are not in the cache, or that were pruned, are zero, always: the bytes of
// a block are a function of what is in it, not of its history.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/base/digest.hpp"
#include "stet/base/error.hpp"
#include "stet/base/memory.hpp"
#include "stet/base/sha256.hpp"
#include "stet/files/mapped_file.hpp"

namespace stet {

class MappedFile;

// q8: an int8 for each number, and a float32 scale for each key and each value of a position.
enum class KvType : uint8_t { f32 = 0, bf16 = 1, f16 = 2, q8 = 3 };
constexpr KvType kKvTypes[] = {KvType::f32, KvType::bf16, KvType::f16, KvType::q8};
const char* kv_type_name(KvType type);
std::optional<KvType> parse_kv_type(const std::string& name);  // the inverse
// The version of how keys and values are rounded and laid out; a state carries it.
constexpr int kKvVersion = 1;

// Elements of the types f32, bf16 and f16 as float32, and back: rounded once, to nearest even.
// Those in memory are `stride` elements apart: a key stands in a column of its block, a value in a
// row.
STET_API float read_element(KvType type, const std::byte* at);
STET_API void read_elements(KvType type, const std::byte* from, size_t stride, std::span<float> x);
STET_API void write_elements(KvType type, std::span<const float> x, std::byte* to, size_t stride);

constexpr int64_t kBlockPositions = 64;

struct KvShape {
  int64_t layers = 0, kv_heads = 0, head_dim = 0;
  KvType type = KvType::f32;

  size_t element_size() const { return type == KvType::f32 ? 4 : type == KvType::q8 ? 1 : 2; }
  // Of K or V of a head, without and with its scales, which stand behind the elements.
  size_t elements_bytes() const {
    return static_cast<size_t>(head_dim * kBlockPositions) * element_size();
  }
  size_t head_bytes() const {
    return elements_bytes() + (type == KvType::q8 ? kBlockPositions * sizeof(float) : 0);
  }
  size_t layer_bytes() const { return static_cast<size_t>(kv_heads) * 2 * head_bytes(); }
  size_t k_offset(int64_t layer, int64_t head) const {
    return static_cast<size_t>(layer * kv_heads + head) * 2 * head_bytes();
  }
  size_t v_offset(int64_t layer, int64_t head) const {
    return k_offset(layer, head) + head_bytes();
  }
  size_t offset(bool key, int64_t layer, int64_t head) const {
    return key ? k_offset(layer, head) : v_offset(layer, head);
  }
  size_t content_bytes() const { return static_cast<size_t>(layers) * layer_bytes(); }
  size_t block_bytes() const { return (content_bytes() + 4095) / 4096 * 4096; }  // whole pages
  bool operator==(const KvShape&) const = default;
};

// The key or the value of one position of a head, of any type; x is [head_dim], `part` the K or the
// V of the head. Writing rounds once. For q8, with a the largest magnitude of x: scale = a / 127
// and q = x (127 / a), each operation rounded to float32, q then to the nearest integer, ties to
// even; where a is below 2^-100 all are zero; where x holds a NaN or an infinity, q is zero and the
// scale NaN. What is read is q scale, rounded to float32.
STET_API void read_row(const KvShape& shape, bool key, const std::byte* part, int64_t slot,
                       std::span<float> x);
STET_API void write_row(const KvShape& shape, bool key, std::span<const float> x, std::byte* part,
                        int64_t slot);

// The digest of each layer's part of a block; the last part ends with the block's padding.
std::vector<Digest> layer_digests(const KvShape& shape, const std::byte* block);

// What names a block that its tokens do not give: SHA-256 over type, shape and bytes
// (identity.hpp).
STET_API Sha256 block_content(const KvShape& shape, const std::byte* block);

// A block of a file that is not what was saved. Whoever has the tokens can compute it again.
class DamagedBlock : public Error {
 public:
  DamagedBlock(const std::string& file, int64_t index, int64_t layer);  // "KV block 3, layer 1"
  // Of a block that was kept without that layer.
  DamagedBlock(int64_t index, int64_t layer);
};

// For each layer, whether a block holds it. Old blocks of a session that keeps windows only lack
// the layers that look no further back than a window (window.hpp).
using HeldLayers = std::vector<bool>;

// Where the bytes of a block come from that was saved, and what they must be.
struct SavedBlock {
  std::vector<Digest> digests;                // one for each layer
  std::string file;                           // names it in errors
  std::shared_ptr<const MappedFile> mapping;  // null: the bytes are in memory
  // Null: all. Of others nothing but the digest is there, and check() says that they are damaged.
  std::shared_ptr<const HeldLayers> held = nullptr;
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

  bool holds(int64_t layer) const {
    return saved_ == nullptr || saved_->held == nullptr ||
           (*saved_->held)[static_cast<size_t>(layer)];
  }
  bool holds_all() const { return saved_ == nullptr || saved_->held == nullptr; }
  // That layers which it does not hold were asked for.
  void forget_asked(const KvShape& shape) const;

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
  bool looked_at(int64_t layer) const;  // by anyone, or about to be
  // Layer by layer; throws DamagedBlock, which names block `index`. check_held: of those it holds.
  void check_all(const KvShape& shape, int64_t index) const;
  void check_held(const KvShape& shape, int64_t index) const;
  // Whether these bytes are those that were saved.
  bool saved_as(const KvShape& shape, const std::byte* bytes) const;
  // Of a block that does not change any more; of one of a file, after check_all().
  std::vector<Digest> digests(const KvShape& shape) const;
  // Likewise: what names a block that its tokens do not give (identity.hpp).
  Sha256 content(const KvShape& shape) const;

 private:
  friend class KvCache;
  friend class KvWriter;
  // What is known of a layer's bytes.
  enum : uint8_t { kUnknown, kGood, kBad, kBusy };
  uint8_t look(const KvShape& shape, size_t layer) const;
  void drop(const KvShape& shape, std::shared_ptr<const HeldLayers> held);

  std::byte* data_;
  std::shared_ptr<const void> owner_;
  mutable std::atomic<bool> shared_{false};
  mutable std::mutex mutex_;
  mutable std::vector<Digest> digests_;  // empty: not known yet
  mutable std::optional<Sha256> content_;
  std::unique_ptr<const SavedBlock> saved_;
  std::unique_ptr<std::atomic<uint8_t>[]> looked_;  // for each digest of saved_
};

inline const char* kv_type_name(KvType type) {
  return type == KvType::f32    ? "f32"
         : type == KvType::bf16 ? "bf16"
         : type == KvType::f16  ? "f16"
                                : "q8";
}

inline std::optional<KvType> parse_kv_type(const std::string& name) {
  for (KvType type : kKvTypes) {
    if (name == kv_type_name(type)) return type;
  }
  return std::nullopt;
}

inline std::vector<Digest> layer_digests(const KvShape& shape, const std::byte* block) {
  std::vector<Digest> digests(static_cast<size_t>(shape.layers));
  const size_t part = shape.layer_bytes(), rest = shape.block_bytes() - shape.content_bytes();
  for (size_t i = 0; i < digests.size(); ++i) {
    digests[i] = digest_of({block + i * part, part + (i + 1 == digests.size() ? rest : 0)});
  }
  return digests;
}

inline DamagedBlock::DamagedBlock(const std::string& file, int64_t index, int64_t layer)
    : Error(ErrorKind::format, file,
            "KV block " + std::to_string(index) + ", layer " + std::to_string(layer),
            "the bytes that were saved", "others") {}

inline DamagedBlock::DamagedBlock(int64_t index, int64_t layer)
    : Error(ErrorKind::format, "",
            "KV block " + std::to_string(index) + ", layer " + std::to_string(layer),
            "keys and values", "none: they were outside of its window (--window-only)") {}

// The bytes are never written: caches copy what is saved() before a write.
inline KvBlock::KvBlock(const std::byte* data, std::shared_ptr<const void> owner, SavedBlock saved)
    : data_(const_cast<std::byte*>(data)),
      owner_(std::move(owner)),
      saved_(new SavedBlock(std::move(saved))),
      looked_(new std::atomic<uint8_t>[saved_->digests.size()]) {
  for (size_t i = 0; i < saved_->digests.size(); ++i)
    looked_[i].store(kUnknown, std::memory_order_relaxed);
}

inline uint8_t KvBlock::look(const KvShape& shape, size_t layer) const {
  if (!holds(static_cast<int64_t>(layer))) {
    looked_[layer].store(kBad, std::memory_order_release);
    return kBad;
  }
  const size_t from = layer * shape.layer_bytes();
  const size_t to =
      layer + 1 == saved_->digests.size() ? shape.block_bytes() : from + shape.layer_bytes();
  const uint8_t found =
      digest_of({data_ + from, to - from}) == saved_->digests[layer] ? kGood : kBad;
  looked_[layer].store(found, std::memory_order_release);
  return found;
}

inline bool KvBlock::check(const KvShape& shape, int64_t layer) const {
  if (saved_ == nullptr) return true;
  const size_t part = static_cast<size_t>(layer);
  uint8_t state = looked_[part].load(std::memory_order_acquire);
  if (state != kGood && state != kBad) state = look(shape, part);
  return state == kGood;
}

inline bool KvBlock::known_good(const KvShape& shape, int64_t layer) const {
  if (saved_ == nullptr) return true;
  const size_t part = static_cast<size_t>(layer);
  uint8_t state = kUnknown;
  if (looked_[part].compare_exchange_strong(state, kBusy, std::memory_order_acquire))
    state = look(shape, part);
  return state == kGood;
}

inline bool KvBlock::looked_at(int64_t layer) const {
  return saved_ != nullptr &&
         looked_[static_cast<size_t>(layer)].load(std::memory_order_acquire) != kUnknown;
}

inline void KvBlock::check_all(const KvShape& shape, int64_t index) const {
  for (int64_t layer = 0; !holds_all() && layer < shape.layers; ++layer) {
    if (!holds(layer) && !check(shape, layer)) throw DamagedBlock(index, layer);
  }
  check_held(shape, index);
}

inline void KvBlock::check_held(const KvShape& shape, int64_t index) const {
  for (int64_t layer = 0; saved_ != nullptr && layer < shape.layers; ++layer) {
    if (holds(layer) && !check(shape, layer)) throw DamagedBlock(saved_->file, index, layer);
  }
}

inline void KvBlock::forget_asked(const KvShape& shape) const {
  for (int64_t layer = 0; !holds_all() && layer < shape.layers; ++layer) {
    if (!holds(layer))
      looked_[static_cast<size_t>(layer)].store(kUnknown, std::memory_order_release);
  }
}

// Memory of one cache becomes a block without some layers, whose pages the system gets back.
inline void KvBlock::drop(const KvShape& shape, std::shared_ptr<const HeldLayers> held) {
  SavedBlock saved{digests(shape), "", nullptr, held};
  std::unique_ptr<std::atomic<uint8_t>[]> looked(new std::atomic<uint8_t>[saved.digests.size()]);
  for (size_t i = 0; i < saved.digests.size(); ++i)
    looked[i].store((*held)[i] ? kGood : kUnknown, std::memory_order_relaxed);
  saved_.reset(new SavedBlock(std::move(saved)));
  looked_ = std::move(looked);
  const size_t part = shape.layer_bytes();
  for (size_t from = 0, to = 0; from < held->size(); from = to) {
    for (to = from + 1; to < held->size() && (*held)[to] == (*held)[from];) ++to;
    if (!(*held)[from]) release_pages(data_ + from * part, (to - from) * part);
  }
}

inline bool KvBlock::saved_as(const KvShape& shape, const std::byte* bytes) const {
  return layer_digests(shape, bytes) == saved_->digests;
}

inline std::vector<Digest> KvBlock::digests(const KvShape& shape) const {
  if (saved_ != nullptr) return saved_->digests;
  const std::lock_guard lock(mutex_);
  if (digests_.empty()) digests_ = layer_digests(shape, data_);
  return digests_;
}

inline Sha256 KvBlock::content(const KvShape& shape) const {
  const std::lock_guard lock(mutex_);
  if (!content_) content_ = block_content(shape, data_);
  return *content_;
}

}  // namespace stet
