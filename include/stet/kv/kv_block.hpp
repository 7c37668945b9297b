// Defines a block of the KV cache: keys and values of 64 consecutive positions in every layer.
//
// A block is one page-aligned run of bytes. For each layer that has its own keys and values, and for
// each KV head, it stores K as [key_dim][64], then V as [64][value_dim]. In q8, [64] float32 scales
// follow each K and each V. Slots of pruned or absent positions are always zero. The bytes of a
// block therefore depend only on its contents, not on its history.
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

// The element type of a KV cache. q8 stores each number as int8, with one float32 scale for each
// key and each value of a position.
enum class KvType : uint8_t { f32 = 0, bf16 = 1, f16 = 2, q8 = 3 };
constexpr KvType kKvTypes[] = {KvType::f32, KvType::bf16, KvType::f16, KvType::q8};
const char* kv_type_name(KvType type);
std::optional<KvType> parse_kv_type(const std::string& name);  // inverse of kv_type_name()
// Version of the rounding and layout of keys and values. Every state carries it.
constexpr int kKvVersion = 1;

// Converts between float32 and f32, bf16 or f16, rounding once to nearest even. Consecutive
// elements in memory are `stride` elements apart. This is 64 for a key, a column of its block, and
// 1 for a value, a row.
STET_API float read_element(KvType type, const std::byte* at);
STET_API void read_elements(KvType type, const std::byte* from, size_t stride, std::span<float> x);
STET_API void write_elements(KvType type, std::span<const float> x, std::byte* to, size_t stride);

constexpr int64_t kBlockPositions = 64;

// Keys and values of one layer.
struct KvLayer {
  int64_t owner =
      0;  // the layer whose keys and values are read: this one or an earlier one; -1: none
  int64_t kv_heads = 0, key_dim = 0, value_dim = 0;
  int64_t window = 0;  // a query sees itself and the window - 1 positions before it; 0: all
  // Sums over the layers before this one that have their own keys and values: numbers per position,
  // and K and V parts.
  int64_t numbers_before = 0, parts_before = 0;

  bool operator==(const KvLayer&) const = default;
};

// The layout of a block. In a uniform shape all layers have their own keys and values of one size.
// Then `table` is empty, and kv_heads and head_dim hold for every layer. Otherwise `table` has a row
// per layer, and kv_heads and head_dim are those of the first.
struct KvShape {
  int64_t layers = 0, kv_heads = 0, head_dim = 0;
  KvType type = KvType::f32;
  std::vector<KvLayer> table = {};

  // Returns the shape of these layers, with numbers_before and parts_before filled in.
  static KvShape of(std::vector<KvLayer> layers, KvType type);
  bool is_uniform() const { return table.empty(); }
  // Returns a layer's row of the table. In a uniform shape every window is 0.
  KvLayer layer(int64_t index) const {
    return is_uniform() ? KvLayer{index, kv_heads, head_dim, head_dim, 0}
                        : table[static_cast<size_t>(index)];
  }
  int64_t owner(int64_t index) const {
    return is_uniform() ? index : table[static_cast<size_t>(index)].owner;
  }
  bool owns(int64_t index) const { return owner(index) == index; }

  size_t element_size() const { return type == KvType::f32 ? 4 : type == KvType::q8 ? 1 : 2; }
  // Size in bytes of one head's K or V with `dim` elements per position, without and with its
  // scales. In q8 the scales follow the elements.
  size_t elements_bytes(int64_t dim) const {
    return static_cast<size_t>(dim * kBlockPositions) * element_size();
  }
  size_t part_bytes(int64_t dim) const {
    return elements_bytes(dim) + (type == KvType::q8 ? kBlockPositions * sizeof(float) : 0);
  }
  // Size of K and V of one head of a layer.
  size_t head_bytes(int64_t index) const {
    if (is_uniform()) return 2 * part_bytes(head_dim);
    const KvLayer& l = table[static_cast<size_t>(index)];
    return part_bytes(l.key_dim) + part_bytes(l.value_dim);
  }
  // Size of a layer's part of a block: 0 if the layer reads another's keys and values.
  size_t layer_bytes(int64_t index) const {
    if (is_uniform()) return static_cast<size_t>(kv_heads) * head_bytes(index);
    return owns(index) ? static_cast<size_t>(layer(index).kv_heads) * head_bytes(index) : 0;
  }
  // Offset of a layer's part.
  size_t layer_offset(int64_t index) const {
    if (is_uniform()) return static_cast<size_t>(index) * layer_bytes(0);
    if (index == layers) return layer_offset(layers - 1) + layer_bytes(layers - 1);
    const KvLayer& l = table[static_cast<size_t>(index)];
    return static_cast<size_t>(l.parts_before) * part_bytes(0) + elements_bytes(l.numbers_before);
  }
  // End of a layer's part. The last part that is not empty includes the block's padding.
  size_t part_end(int64_t index) const {
    const size_t end = layer_offset(index) + layer_bytes(index);
    return layer_bytes(index) > 0 && end == content_bytes() ? block_bytes() : end;
  }
  // Offsets of K and V of one head. A layer without its own has those of the layer that it reads.
  size_t k_offset(int64_t index, int64_t head) const {
    const int64_t own = owner(index);
    return layer_offset(own) + static_cast<size_t>(head) * head_bytes(own);
  }
  size_t v_offset(int64_t index, int64_t head) const {
    return k_offset(index, head) + part_bytes(layer(index).key_dim);
  }
  size_t offset(bool key, int64_t index, int64_t head) const {
    return key ? k_offset(index, head) : v_offset(index, head);
  }
  size_t content_bytes() const { return layer_offset(layers); }
  size_t block_bytes() const { return (content_bytes() + 4095) / 4096 * 4096; }  // whole pages
  bool operator==(const KvShape&) const = default;
};

inline KvShape KvShape::of(std::vector<KvLayer> layers, KvType type) {
  const auto own = [&](size_t i) { return layers[i].owner == static_cast<int64_t>(i); };
  bool uniform = true;
  for (size_t i = 0; i < layers.size(); ++i) {
    const KvLayer &l = layers[i], &first = layers[0];
    uniform = uniform && own(i) && l.kv_heads == first.kv_heads && l.key_dim == first.key_dim &&
              l.value_dim == first.key_dim;
    if (i + 1 == layers.size()) break;
    const int64_t heads = own(i) ? l.kv_heads : 0;
    layers[i + 1].numbers_before = l.numbers_before + heads * (l.key_dim + l.value_dim);
    layers[i + 1].parts_before = l.parts_before + 2 * heads;
  }
  KvShape shape{static_cast<int64_t>(layers.size()), 0, 0, type};
  if (layers.empty()) return shape;
  shape.kv_heads = layers[0].kv_heads, shape.head_dim = layers[0].key_dim;
  if (!uniform) shape.table = std::move(layers);
  return shape;
}

// Throws an argument Error for a layer without its own keys and values. The error names the layer
// that it reads.
void check_owns(const KvShape& shape, const std::string& field, int64_t layer);

// Reads or writes the key (or value) of one position of one KV head, in any element type. x has as
// many elements as the head; `part` points to the head's K (or V).
//
// Writing rounds once. For q8, let a be the largest magnitude in x:
//   scale = a / 127,  q = x * (127 / a)
// Each operation is rounded to float32, and q then to the nearest integer, ties to even. If a is
// below 2^-100, scale and q are zero. If x contains a NaN or an infinity, q is zero and the scale
// is NaN. Reading returns q times the scale, rounded to float32.
STET_API void read_row(const KvShape& shape, bool key, const std::byte* part, int64_t slot,
                       std::span<float> x);
STET_API void write_row(const KvShape& shape, bool key, std::span<const float> x, std::byte* part,
                        int64_t slot);

// Returns one digest per layer of a block. The last part's digest also covers the block's padding.
// A layer without its own keys and values has the digest of no bytes.
std::vector<Digest> layer_digests(const KvShape& shape, const std::byte* block);

// Returns the SHA-256 of type, shape and bytes. It identifies a block whose bytes cannot be derived
// from tokens (identity.hpp).
STET_API Sha256 block_content(const KvShape& shape, const std::byte* block);

// Thrown when a block from a file has other bytes than those saved. The block can be recomputed
// from the session's tokens.
class DamagedBlock : public Error {
 public:
  // field: "KV block 3, layer 1"
  DamagedBlock(const std::string& path, int64_t index, int64_t layer);
  // Reports that the block no longer holds this layer (HeldLayers).
  DamagedBlock(int64_t index, int64_t layer);

  int64_t lacking = -1;  // the block that does not hold a layer; -1: its bytes are damaged
};

// One flag per layer: true if a block holds that layer. With window-only caches, old blocks lack
// the layers whose attention window has moved past them (window.hpp). A layer without its own keys
// and values counts as held.
using HeldLayers = std::vector<bool>;

// Origin and expected digests of a block that was saved.
struct SavedBlock {
  std::vector<Digest> digests;                // one per layer
  std::string file;                           // used in error messages
  std::shared_ptr<const MappedFile> mapping;  // null if the bytes are in memory
  // The layers that the block holds; null means all. For a missing layer only the digest is kept,
  // and check() returns false.
  std::shared_ptr<const HeldLayers> held = nullptr;
};

// A block of 64 positions. Its memory is either private to one cache and writable, or immutable:
// shared between caches or mapped from a file. Each layer of a mapped block is compared with its
// digest before its first use.
class KvBlock {
 public:
  // Wraps writable memory, which `owner` keeps alive.
  KvBlock(std::byte* data, std::shared_ptr<const void> owner)
      : data_(data), owner_(std::move(owner)) {}
  // Wraps bytes loaded from a file, which are checked later. `owner` keeps them alive.
  KvBlock(const std::byte* data, std::shared_ptr<const void> owner, SavedBlock saved);

  const std::byte* data() const { return data_; }
  // Returns the block's origin and expected digests, or null for plain memory.
  const SavedBlock* saved() const { return saved_.get(); }
  // Returns a block over the same saved bytes whose layers count as unchecked.
  std::shared_ptr<KvBlock> unchecked_copy() const {
    return std::make_shared<KvBlock>(data_, owner_, *saved_);
  }

  bool holds(int64_t layer) const {
    return saved_ == nullptr || saved_->held == nullptr ||
           (*saved_->held)[static_cast<size_t>(layer)];
  }
  bool holds_all() const { return saved_ == nullptr || saved_->held == nullptr; }
  // Resets the check results of layers that the block does not hold. They are set again when a pass
  // requests such a layer.
  void reset_missing_layers(const KvShape& shape) const;

  // Returns true once a second cache has shared the block; from then on it is immutable. A flag is
  // used instead of an owner count because a fallen count would not prove that the other owners'
  // reads have finished.
  bool shared() const { return shared_.load(std::memory_order_relaxed); }
  void mark_shared() const {
    if (!shared()) shared_.store(true, std::memory_order_relaxed);
  }

  // Returns true if the layer's bytes are those that were saved. The digest is computed on the
  // first call only. Any thread may call it.
  bool check(const KvShape& shape, int64_t layer) const;
  // Like check(), but returns false instead of repeating a check that another thread is running.
  bool check_layer_once(const KvShape& shape, int64_t layer) const;
  bool was_checked(int64_t layer) const;  // some thread has checked it or is checking it
  // Checks every layer (check_held: every layer that it holds). Throws DamagedBlock with `index` as
  // the block's number.
  void check_all(const KvShape& shape, int64_t index) const;
  void check_held(const KvShape& shape, int64_t index) const;
  // Returns true if `bytes` have the digests that were saved.
  bool saved_as(const KvShape& shape, const std::byte* bytes) const;
  // Returns the digests of an immutable block. Call check_all() first if the block is from a file.
  std::vector<Digest> digests(const KvShape& shape) const;
  // Returns block_content() of an immutable block. Call check_all() first if the block is from a
  // file.
  Sha256 content(const KvShape& shape) const;

 private:
  friend class KvCache;
  friend class KvWriter;
  // The check result of a layer.
  enum : uint8_t { kUnknown, kGood, kBad, kBusy };
  uint8_t look(const KvShape& shape, size_t layer) const;
  void drop(const KvShape& shape, std::shared_ptr<const HeldLayers> held);

  std::byte* data_;
  std::shared_ptr<const void> owner_;
  mutable std::atomic<bool> shared_{false};
  mutable std::mutex mutex_;
  mutable std::vector<Digest> digests_;  // empty until computed
  mutable std::optional<Sha256> content_;
  std::unique_ptr<const SavedBlock> saved_;
  // check results, one per layer; null for plain memory
  std::unique_ptr<std::atomic<uint8_t>[]> check_results_;
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

inline void check_owns(const KvShape& shape, const std::string& field, int64_t layer) {
  if (shape.owns(layer)) return;
  const int64_t owner = shape.owner(layer);
  throw Error(ErrorKind::argument, "", field, "a layer with keys and values of its own",
              std::to_string(layer) +
                  (owner < 0 ? ", which is recurrent"
                             : ", which reads those of layer " + std::to_string(owner)));
}

inline std::vector<Digest> layer_digests(const KvShape& shape, const std::byte* block) {
  std::vector<Digest> digests;
  for (int64_t i = 0; i < shape.layers; ++i) {
    const size_t from = shape.layer_offset(i);
    digests.push_back(digest_of({block + from, shape.part_end(i) - from}));
  }
  return digests;
}

inline DamagedBlock::DamagedBlock(const std::string& path, int64_t index, int64_t layer)
    : Error(ErrorKind::format, path,
            "KV block " + std::to_string(index) + ", layer " + std::to_string(layer),
            "the bytes that were saved", "others") {}

inline DamagedBlock::DamagedBlock(int64_t index, int64_t layer)
    : Error(ErrorKind::format, "",
            "KV block " + std::to_string(index) + ", layer " + std::to_string(layer),
            "keys and values", "none: they were dropped outside its window (--window-only)"),
      lacking(index) {}

// The cast is safe: caches copy a saved() block before they write to it.
inline KvBlock::KvBlock(const std::byte* data, std::shared_ptr<const void> owner, SavedBlock saved)
    : data_(const_cast<std::byte*>(data)),
      owner_(std::move(owner)),
      saved_(new SavedBlock(std::move(saved))),
      check_results_(new std::atomic<uint8_t>[saved_->digests.size()]) {
  for (size_t i = 0; i < saved_->digests.size(); ++i)
    check_results_[i].store(kUnknown, std::memory_order_relaxed);
}

inline uint8_t KvBlock::look(const KvShape& shape, size_t layer) const {
  if (!holds(static_cast<int64_t>(layer))) {
    check_results_[layer].store(kBad, std::memory_order_release);
    return kBad;
  }
  const auto index = static_cast<int64_t>(layer);
  const size_t from = shape.layer_offset(index), size = shape.part_end(index) - from;
  const uint8_t found = digest_of({data_ + from, size}) == saved_->digests[layer] ? kGood : kBad;
  check_results_[layer].store(found, std::memory_order_release);
  return found;
}

inline bool KvBlock::check(const KvShape& shape, int64_t layer) const {
  if (saved_ == nullptr) return true;
  const size_t part = static_cast<size_t>(layer);
  uint8_t state = check_results_[part].load(std::memory_order_acquire);
  if (state != kGood && state != kBad) state = look(shape, part);
  return state == kGood;
}

inline bool KvBlock::check_layer_once(const KvShape& shape, int64_t layer) const {
  if (saved_ == nullptr) return true;
  const size_t part = static_cast<size_t>(layer);
  uint8_t state = kUnknown;
  if (check_results_[part].compare_exchange_strong(state, kBusy, std::memory_order_acquire))
    state = look(shape, part);
  return state == kGood;
}

inline bool KvBlock::was_checked(int64_t layer) const {
  return saved_ != nullptr &&
         check_results_[static_cast<size_t>(layer)].load(std::memory_order_acquire) != kUnknown;
}

inline void KvBlock::check_all(const KvShape& shape, int64_t index) const {
  for (int64_t layer = 0; !holds_all() && layer < shape.layers; ++layer) {
    if (!holds(layer)) throw DamagedBlock(index, layer);
  }
  check_held(shape, index);
}

inline void KvBlock::check_held(const KvShape& shape, int64_t index) const {
  for (int64_t layer = 0; saved_ != nullptr && layer < shape.layers; ++layer) {
    if (holds(layer) && !check(shape, layer)) throw DamagedBlock(saved_->file, index, layer);
  }
}

inline void KvBlock::reset_missing_layers(const KvShape& shape) const {
  for (int64_t layer = 0; !holds_all() && layer < shape.layers; ++layer) {
    if (!holds(layer))
      check_results_[static_cast<size_t>(layer)].store(kUnknown, std::memory_order_release);
  }
}

// Turns a block that only one cache uses into one without some layers, and frees their pages.
inline void KvBlock::drop(const KvShape& shape, std::shared_ptr<const HeldLayers> held) {
  SavedBlock saved{digests(shape), "", nullptr, held};
  std::unique_ptr<std::atomic<uint8_t>[]> looked(new std::atomic<uint8_t>[saved.digests.size()]);
  for (size_t i = 0; i < saved.digests.size(); ++i)
    looked[i].store((*held)[i] ? kGood : kUnknown, std::memory_order_relaxed);
  saved_.reset(new SavedBlock(std::move(saved)));
  check_results_ = std::move(looked);
  const auto offset = [&](size_t layer) { return shape.layer_offset(static_cast<int64_t>(layer)); };
  for (size_t from = 0, to = 0; from < held->size(); from = to) {
    for (to = from + 1; to < held->size() && (*held)[to] == (*held)[from];) ++to;
    if (!(*held)[from]) release_pages(data_ + offset(from), offset(to) - offset(from));
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
