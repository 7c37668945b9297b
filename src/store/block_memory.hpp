// Recycles memory of blocks for those received next. The system clears the pages that it hands out,
// which takes twice as long as receiving.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>

#include "stet/base/memory.hpp"

namespace stet {

// A pool of memory. Any thread may use it, and memory may outlive it.
class BlockMemory {
 public:
  // Keeps at most `most` unused bytes. The system may reclaim them under memory pressure.
  explicit BlockMemory(size_t most) : pool_(std::make_shared<Pool>(most)) {}

  // Returns at least this many bytes of arbitrary content. They return to the pool with their last
  // owner.
  std::shared_ptr<Memory> take(size_t bytes);

 private:
  struct Pool {
    explicit Pool(size_t limit) : most(limit) {}
    void give(Memory memory);

    const size_t most;
    std::mutex mutex;
    std::list<Memory> idle;  // least recently used first
    size_t bytes = 0;
  };
  std::shared_ptr<Pool> pool_;
};

}  // namespace stet
