#include "stet/kv/kv_block.hpp"

#include <algorithm>
#include <cstring>

#include "src/snapshot/identity.hpp"
#include "stet/files/mapped_file.hpp"
#include "stet/model/matrix.hpp"

namespace stet {

const char* kv_type_name(KvType type) {
  return type == KvType::f32 ? "f32" : type == KvType::bf16 ? "bf16" : "f16";
}

KvType kv_type_of(const std::string& name) {
  for (KvType type : {KvType::f32, KvType::bf16, KvType::f16}) {
    if (name == kv_type_name(type)) return type;
  }
  throw Error(ErrorKind::argument, "", "kv type", "f32, bf16 or f16", name);
}

std::vector<Digest> layer_digests(const KvShape& shape, const std::byte* block) {
  std::vector<Digest> digests(static_cast<size_t>(shape.layers));
  const size_t part = shape.layer_bytes(), rest = shape.block_bytes() - shape.content_bytes();
  for (size_t i = 0; i < digests.size(); ++i) {
    digests[i] = digest_of({block + i * part, part + (i + 1 == digests.size() ? rest : 0)});
  }
  return digests;
}

DamagedBlock::DamagedBlock(const std::string& file, int64_t index, int64_t layer)
    : Error(ErrorKind::format, file,
            "KV block " + std::to_string(index) + ", layer " + std::to_string(layer),
            "the bytes that were saved", "others") {}

namespace {
constexpr uint8_t kUnknown = 0, kGood = 1, kBad = 2, kBusy = 3;
}

KvBlock::KvBlock(const std::byte* data, std::shared_ptr<const void> owner, SavedBlock saved)
    : data_(const_cast<std::byte*>(
          data)),  // never written: caches copy what is saved() before a write
      owner_(std::move(owner)),
      saved_(new SavedBlock(std::move(saved))),
      looked_(new std::atomic<uint8_t>[saved_->digests.size()]) {
  for (size_t i = 0; i < saved_->digests.size(); ++i)
    looked_[i].store(kUnknown, std::memory_order_relaxed);
}

size_t KvBlock::part_of(const KvShape& shape, int64_t layer) const {
  const bool whole =
      saved_->digests.size() != static_cast<size_t>(shape.layers);  // a file of format version 1
  return whole ? 0 : static_cast<size_t>(layer);
}

uint8_t KvBlock::look(const KvShape& shape, size_t part) const {
  const size_t from = part * shape.layer_bytes();
  const size_t to =
      part + 1 == saved_->digests.size() ? shape.block_bytes() : from + shape.layer_bytes();
  const uint8_t found =
      digest_of({data_ + from, to - from}) == saved_->digests[part] ? kGood : kBad;
  looked_[part].store(found, std::memory_order_release);
  return found;
}

bool KvBlock::check(const KvShape& shape, int64_t layer) const {
  if (saved_ == nullptr) return true;
  const size_t part = part_of(shape, layer);
  uint8_t state = looked_[part].load(std::memory_order_acquire);
  if (state != kGood && state != kBad) state = look(shape, part);
  return state == kGood;
}

bool KvBlock::known_good(const KvShape& shape, int64_t layer) const {
  if (saved_ == nullptr) return true;
  const size_t part = part_of(shape, layer);
  uint8_t state = kUnknown;
  if (looked_[part].compare_exchange_strong(state, kBusy, std::memory_order_acquire))
    state = look(shape, part);
  return state == kGood;
}

bool KvBlock::looked_at(const KvShape& shape, int64_t layer) const {
  return saved_ != nullptr &&
         looked_[part_of(shape, layer)].load(std::memory_order_acquire) != kUnknown;
}

void KvBlock::check_all(const KvShape& shape, int64_t index) const {
  for (int64_t layer = 0; saved_ != nullptr && layer < shape.layers; ++layer) {
    if (!check(shape, layer)) throw DamagedBlock(saved_->file, index, layer);
  }
}

bool KvBlock::saved_as(const KvShape& shape, const std::byte* bytes) const {
  if (saved_->digests.size() == static_cast<size_t>(shape.layers))
    return layer_digests(shape, bytes) == saved_->digests;
  return digest_of({bytes, shape.block_bytes()}) == saved_->digests[0];
}

std::vector<Digest> KvBlock::digests(const KvShape& shape) const {
  if (saved_ != nullptr && saved_->digests.size() == static_cast<size_t>(shape.layers))
    return saved_->digests;
  const std::lock_guard lock(mutex_);
  if (digests_.empty()) digests_ = layer_digests(shape, data_);
  return digests_;
}

Sha256 KvBlock::content(const KvShape& shape) const {
  const std::lock_guard lock(mutex_);
  if (!content_) content_ = block_content(shape, data_);
  return *content_;
}

}  // namespace stet
