#include "stet/kv_cache.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>

#include "stet/error.hpp"
#include "stet/file.hpp"
#include "stet/matrix.hpp"
#include "stet/memory.hpp"
#include "stet/team.hpp"

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

float read_element(KvType type, const std::byte* at) {
  if (type == KvType::f32) {
    float x;
    std::memcpy(&x, at, sizeof x);
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return type == KvType::bf16 ? widen_bf16(bits) : widen_f16(bits);
}

void write_element(KvType type, std::byte* at, float x) {
  if (type == KvType::f32) {
    std::memcpy(at, &x, sizeof x);
    return;
  }
  const uint16_t bits = type == KvType::bf16 ? round_bf16(x) : round_f16(x);
  std::memcpy(at, &bits, sizeof bits);
}

std::vector<Digest> layer_digests(const KvShape& shape, const std::byte* block) {
  std::vector<Digest> digests(static_cast<size_t>(shape.layers));
  const size_t part = shape.layer_bytes(), rest = shape.block_bytes() - shape.content_bytes();
  for (size_t i = 0; i < digests.size(); ++i) {
    digests[i] = digest_of({block + i * part, part + (i + 1 == digests.size() ? rest : 0)});
  }
  return digests;
}

// ---------------------------------------------------------------- a block

namespace {
constexpr uint8_t kUnknown = 0, kGood = 1, kBad = 2, kBusy = 3;
}

KvBlock::KvBlock(const std::byte* data, std::shared_ptr<const void> owner, std::vector<Digest> digests, std::string file)
    : data_(const_cast<std::byte*>(data)),  // never written: writable() is false
      owner_(std::move(owner)),
      file_(std::move(file)),
      digests_(std::move(digests)),
      checked_(new std::atomic<uint8_t>[digests_.size()]) {
  for (size_t i = 0; i < digests_.size(); ++i) checked_[i].store(kUnknown, std::memory_order_relaxed);
}

size_t KvBlock::part_of(const KvShape& shape, int64_t layer) const {
  const bool whole = digests_.size() != static_cast<size_t>(shape.layers);  // a file of format version 1
  return whole ? 0 : static_cast<size_t>(layer);
}

uint8_t KvBlock::look(const KvShape& shape, size_t part) const {
  const size_t from = part * shape.layer_bytes();
  const size_t to = part + 1 == digests_.size() ? shape.block_bytes() : from + shape.layer_bytes();
  const uint8_t found = digest_of({data_ + from, to - from}) == digests_[part] ? kGood : kBad;
  checked_[part].store(found, std::memory_order_release);
  return found;
}

bool KvBlock::check(const KvShape& shape, int64_t layer) const {
  if (!checked_) return true;
  const size_t part = part_of(shape, layer);
  uint8_t state = checked_[part].load(std::memory_order_acquire);
  if (state != kGood && state != kBad) state = look(shape, part);
  return state == kGood;
}

bool KvBlock::known_good(const KvShape& shape, int64_t layer) const {
  if (!checked_) return true;
  const size_t part = part_of(shape, layer);
  uint8_t state = kUnknown;
  if (checked_[part].compare_exchange_strong(state, kBusy, std::memory_order_acquire)) state = look(shape, part);
  return state == kGood;
}

bool KvBlock::looked_at(const KvShape& shape, int64_t layer) const {
  return checked_ && checked_[part_of(shape, layer)].load(std::memory_order_acquire) != kUnknown;
}

std::string KvBlock::damage(int64_t index, int64_t layer) const {
  return "KV block " + std::to_string(index) + ", layer " + std::to_string(layer);
}

void KvBlock::check_all(const KvShape& shape, int64_t index) const {
  for (int64_t layer = 0; checked_ && layer < shape.layers; ++layer) {
    if (!check(shape, layer)) throw Error(ErrorKind::format, file_, damage(index, layer), "the bytes that were saved", "others");
  }
}

std::vector<Digest> KvBlock::digests(const KvShape& shape) const {
  const std::lock_guard lock(mutex_);
  if (digests_.size() != static_cast<size_t>(shape.layers)) {
    std::vector<Digest> found = layer_digests(shape, data_);
    if (checked_) return found;
    digests_ = std::move(found);
  }
  return digests_;
}

// ---------------------------------------------------------------- memory

// Memory for the blocks of one cache, reserved once. Blocks may outlive the cache (a fork holds them), so each
// keeps the pool alive, and returns its slot zeroed.
class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  // 2 MB pages for blocks that fill them: a small model's session would take a whole one for a few tokens.
  BlockPool(size_t block_bytes, size_t count)
      : block_bytes_(block_bytes), memory_(block_bytes * count, block_bytes >= (size_t{1} << 20)) {
    free_.reserve(count);
    for (size_t i = count; i > 0; --i) free_.push_back(i - 1);
  }

  // Zero-filled. Null when all slots are taken: forks still hold blocks that this cache has dropped.
  std::shared_ptr<std::byte> take() {
    size_t slot;
    {
      const std::lock_guard lock(mutex_);
      if (free_.empty()) return nullptr;
      slot = free_.back();
      free_.pop_back();
    }
    // Not under the lock: when this fails to allocate, it gives the slot back before it throws.
    return {memory_.data() + slot * block_bytes_,
            [pool = shared_from_this(), slot](std::byte* block) { pool->give_back(slot, block); }};
  }

 private:
  void give_back(size_t slot, std::byte* block) {
    madvise(block, block_bytes_, MADV_DONTNEED);  // private anonymous pages read as zeros afterwards
    const std::lock_guard lock(mutex_);
    free_.push_back(slot);
  }

  const size_t block_bytes_;
  Memory memory_;
  std::mutex mutex_;
  std::vector<size_t> free_;
};

// ---------------------------------------------------------------- the cache

KvCache::KvCache(const KvShape& shape, int64_t capacity)
    : shape_(shape), capacity_(capacity), doubt_(std::make_shared<std::atomic<bool>>(false)) {
  const size_t count = static_cast<size_t>(blocks_of(capacity));
  const size_t bytes = shape.block_bytes() * count;
  try {
    pool_ = std::make_shared<BlockPool>(shape.block_bytes(), count);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorKind::capacity, "", "ctx", "positions whose keys and values fit in the address space",
                std::to_string(capacity) + " positions of " + std::to_string(bytes) + " bytes");
  }
  blocks_.reserve(count);
  visible_.reserve(count);
}

KvCache::KvCache(const KvCache& other)
    : shape_(other.shape_),
      capacity_(other.capacity_),
      size_(other.size_),
      prepared_(other.size_),
      blocks_(other.blocks_),
      visible_(other.visible_),
      files_(other.files_),
      doubt_(std::make_shared<std::atomic<bool>>(false)) {}

std::shared_ptr<KvBlock> KvCache::fresh_block() {
  if (pool_ != nullptr) {
    if (auto slot = pool_->take()) return std::make_shared<KvBlock>(slot.get(), slot);
  }
  auto memory = std::make_shared<Memory>(shape_.block_bytes(), false);
  return std::make_shared<KvBlock>(memory->data(), memory);
}

// Before a write: the block becomes this cache's alone, and forgets what is known of its bytes.
void KvCache::own_block(int64_t index) {
  std::shared_ptr<KvBlock>& block = blocks_[static_cast<size_t>(index)];
  // Another thread may have dropped the last other reference just now. Taking one of our own orders its reads
  // before our writes; looking at the count alone would not.
  const std::shared_ptr<KvBlock> held = block;
  if (held.use_count() == 2 && held->writable()) {
    held->digests_.clear();
    return;
  }
  held->check_all(shape_, index);
  std::shared_ptr<KvBlock> copy = fresh_block();
  std::memcpy(copy->data_, held->data_, shape_.block_bytes());
  block = std::move(copy);
}

void KvCache::prepare(int64_t count) {
  if (count > capacity_ - size_) {
    throw Error(ErrorKind::capacity, "", "tokens", "at most " + std::to_string(capacity_) + " positions (--ctx)",
                std::to_string(size_) + " + " + std::to_string(count));
  }
  const int64_t needed = blocks_of(size_ + count);
  if (count > 0 && size_ % kBlockPositions != 0) own_block(size_ / kBlockPositions);
  try {
    while (blocks() < needed) {
      blocks_.push_back(fresh_block());
      visible_.push_back(~uint64_t{0});
    }
  } catch (...) {
    drop_blocks(blocks_of(size_));
    throw;
  }
  prepared_ = size_ + count;
}

void KvCache::drop_blocks(int64_t kept) {
  blocks_.resize(static_cast<size_t>(kept));
  visible_.resize(static_cast<size_t>(kept));
}

void KvCache::zero_slots(int64_t index, size_t from, size_t to) {
  const size_t element = shape_.element_size(), row = static_cast<size_t>(shape_.head_dim) * element;
  for (int64_t i = 0; i < shape_.layers * shape_.kv_heads; ++i) {
    std::byte* k = writable(index) + static_cast<size_t>(i) * 2 * shape_.head_bytes();
    for (int64_t d = 0; d < shape_.head_dim; ++d) {
      std::memset(k + (static_cast<size_t>(d) * kBlockPositions + from) * element, 0, (to - from) * element);
    }
    std::memset(k + shape_.head_bytes() + from * row, 0, (to - from) * row);
  }
}

void KvCache::truncate(int64_t size) {
  if (size >= prepared_) return;
  const int64_t kept = blocks_of(size);
  const size_t from = static_cast<size_t>(size % kBlockPositions);
  if (from != 0) {
    own_block(kept - 1);
    zero_slots(kept - 1, from, kBlockPositions);
    visible_[static_cast<size_t>(kept - 1)] |= ~uint64_t{0} << from;
  }
  drop_blocks(kept);
  size_ = prepared_ = size;
}

void KvCache::hide(int64_t begin, int64_t end) {
  for (int64_t at = begin; at < end;) {
    const int64_t index = at / kBlockPositions, stop = std::min(end, (index + 1) * kBlockPositions);
    const size_t from = static_cast<size_t>(at % kBlockPositions), count = static_cast<size_t>(stop - at);
    const uint64_t bits = (count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << from;
    uint64_t& visible = visible_[static_cast<size_t>(index)];
    visible &= ~bits;
    if (visible == 0) {
      blocks_[static_cast<size_t>(index)] = fresh_block();
    } else {
      own_block(index);
      zero_slots(index, from, from + count);
    }
    at = stop;
  }
}

void KvCache::adopt(std::vector<std::shared_ptr<KvBlock>> blocks, std::vector<uint64_t> visible, int64_t size) {
  blocks_ = std::move(blocks);
  visible_ = std::move(visible);
  size_ = prepared_ = size;
}

int64_t visible_positions(const KvCache& kv) {
  int64_t n = 0;
  for (int64_t at = 0; at < kv.size(); ++at) n += static_cast<int64_t>(kv.visible(at / kBlockPositions) >> (at % kBlockPositions) & 1);
  return n;
}

void KvCache::check_mapped(int64_t index, int64_t layer) const {
  if (!blocks_[static_cast<size_t>(index)]->known_good(shape_, layer)) doubt_->store(true, std::memory_order_relaxed);
}

void KvCache::throw_damage() const {
  if (!doubt_->exchange(false)) return;
  for (int64_t b = 0; b < blocks(); ++b) {
    const KvBlock& block = *blocks_[static_cast<size_t>(b)];
    for (int64_t layer = 0; layer < shape_.layers; ++layer) {
      if (block.looked_at(shape_, layer) && !block.check(shape_, layer)) block.check_all(shape_, b);
    }
  }
}

void KvCache::check_files() const {
  for (const auto& file : files_) file->check_unchanged();
}

void KvCache::check_all(int threads) const {
  check_files();
  std::vector<int64_t> mapped;
  for (int64_t b = 0; b < blocks(); ++b) {
    if (!blocks_[static_cast<size_t>(b)]->writable()) mapped.push_back(b);
  }
  if (mapped.empty()) return;
  const size_t layers = static_cast<size_t>(shape_.layers);
  run_each(threads, mapped.size() * layers, [&](size_t i) {
    blocks_[static_cast<size_t>(mapped[i / layers])]->check(shape_, static_cast<int64_t>(i % layers));
  });
  for (const int64_t b : mapped) blocks_[static_cast<size_t>(b)]->check_all(shape_, b);
}

}  // namespace stet
