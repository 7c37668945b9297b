// A record as a server of the Redis protocol has it: in chunks, each a value of its own.
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

constexpr size_t kRedisChunk = size_t{1} << 20;  // bytes of all but the last one

// Of the whole record, as its first bytes claim; 0 where they claim nothing that can be.
uint64_t claimed_bytes(std::span<const std::byte> first);
size_t chunks_of(uint64_t bytes);

// A record whose chunks are on their way. It is taken as soon as the last of them is there: nothing
// where one is not on the server; without bytes, which is refused, where what is there is no
// record, or a chunk has another size.
class IncomingRecord {
 public:
  using Take = std::function<void(std::optional<StoredBytes> record)>;

  IncomingRecord(BlockMemory& from, Take take) : from_(&from), take_(std::move(take)) {}

  // Where chunk `n` is to lie, which is so large and begins like this; the first one tells about
  // the others, and has to come before them. Empty: nowhere.
  std::span<std::byte> place(size_t n, size_t size, std::span<const std::byte> head);
  // Chunk `n` is where it was to lie; is not on the server.
  void placed(size_t n);
  void gone(size_t n);
  size_t chunks() const { return there_.size(); }  // 0 before the first one
  bool is_missing(size_t n) const { return !taken_ && !there_[n]; }
  // No more of them come.
  void end();

 private:
  void start(size_t size, std::span<const std::byte> head);
  void give(std::optional<StoredBytes> record);

  BlockMemory* from_;
  Take take_;
  std::shared_ptr<Memory> memory_;
  uint64_t bytes_ = 0;       // as its first chunk claims
  std::vector<bool> there_;  // chunks
  bool taken_ = false;
};

}  // namespace stet
