// Assembles records that a server of the Redis protocol stores as chunks, one value each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "src/store/block_memory.hpp"
#include "stet/store/backend.hpp"

namespace stet {

constexpr size_t kRedisChunk = size_t{1} << 20;  // bytes of a chunk, except the last one

// Returns the length that the first bytes of a record claim, or 0 if it is impossible.
uint64_t claimed_bytes(std::span<const std::byte> first);
size_t chunks_of(uint64_t bytes);

// A record whose chunks are arriving. `take` is called as soon as the outcome is known. It gets
// nothing if a chunk is missing on the server. It gets empty bytes, which are refused, if the
// chunks are not a record or have wrong sizes.
class IncomingRecord {
 public:
  using Take = std::function<void(std::optional<StoredBytes> record)>;

  IncomingRecord(BlockMemory& from, Take take) : from_(&from), take_(std::move(take)) {}

  // Returns memory for chunk `n` of `size` bytes that begins with `head`, or nothing. The first
  // chunk must come before the others, since it contains their number.
  std::span<std::byte> place(size_t n, size_t size, std::span<const std::byte> head);
  // Report that chunk `n` was received, and that it is missing on the server.
  void set_received(size_t n);
  void set_missing(size_t n);
  size_t chunks() const { return there_.size(); }  // 0 before the first one
  bool is_missing(size_t n) const { return !taken_ && !there_[n]; }
  // Reports that no more chunks come.
  void end();

 private:
  void start(size_t size, std::span<const std::byte> head);
  void give(std::optional<StoredBytes> record);

  BlockMemory* from_;
  Take take_;
  std::shared_ptr<Memory> memory_;
  uint64_t bytes_ = 0;       // as the first chunk claims
  std::vector<bool> there_;  // true: the chunk has arrived
  bool taken_ = false;
};

}  // namespace stet
