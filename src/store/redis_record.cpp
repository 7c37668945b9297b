#include "src/store/redis_record.hpp"

#include <algorithm>

#include "stet/base/limits.hpp"
#include "stet/base/memory.hpp"
#include "stet/store/record.hpp"

namespace stet {
namespace {

constexpr size_t kSizeAt = 80;  // offset of the payload's size in a record (record.hpp)
constexpr uint64_t kMostRecord = kMaxBlockBytes + (uint64_t{64} << 20);

uint64_t little_endian(std::span<const std::byte> bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i > 0; --i)
    value = value << 8 | static_cast<uint64_t>(bytes[i - 1]);
  return value;
}

}  // namespace

uint64_t claimed_bytes(std::span<const std::byte> first) {
  if (first.size() < kRecordFront) return 0;
  const uint64_t payload = little_endian(first.subspan(kSizeAt, 8)),
                 offset = little_endian(first.subspan(kSizeAt + 12, 4));
  if ((offset != kBlockFront && offset != kRecordFront) || payload > kMostRecord) return 0;
  return offset + payload;
}

size_t chunks_of(uint64_t bytes) {
  return static_cast<size_t>((bytes + kRedisChunk - 1) / kRedisChunk);
}

void IncomingRecord::start(size_t size, std::span<const std::byte> head) {
  bytes_ = claimed_bytes(head);
  if (bytes_ == 0 || size != std::min<uint64_t>(bytes_, kRedisChunk)) return end();
  there_.assign(chunks_of(bytes_), false);
  memory_ = from_->take(static_cast<size_t>(bytes_));
}

std::span<std::byte> IncomingRecord::place(size_t n, size_t size, std::span<const std::byte> head) {
  if (n == 0) start(size, head);
  if (taken_ || n >= chunks()) return {};
  const size_t at = n * kRedisChunk;
  if (size == std::min<size_t>(kRedisChunk, bytes_ - at)) return {memory_->data() + at, size};
  end();
  return {};
}

void IncomingRecord::set_received(size_t n) {
  if (taken_ || n >= chunks()) return;
  there_[n] = true;
  if (std::ranges::find(there_, false) == there_.end())
    give(StoredBytes{{memory_->data(), static_cast<size_t>(bytes_)}, memory_, nullptr});
}

void IncomingRecord::set_missing(size_t n) {
  if (n == 0 || n < chunks()) give(std::nullopt);
}

void IncomingRecord::end() { give(StoredBytes{{}, nullptr, nullptr}); }

void IncomingRecord::give(std::optional<StoredBytes> record) {
  if (!std::exchange(taken_, true)) take_(std::move(record));
}

}  // namespace stet
