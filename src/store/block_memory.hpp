// Memory of blocks that nobody needs any more, kept for those that are received next: the system
// clears what it gives anew, which takes twice as long as receiving.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>

#include "stet/base/memory.hpp"

namespace stet {

// Any thread may call it, and return memory after it has ended.
class BlockMemory {
 public:
  // `most`: bytes that are kept. The system may take those back when it has no others.
  explicit BlockMemory(size_t most) : kept_(std::make_shared<Kept>(most)) {}

  // So many bytes at least, of any content; they return when the last owner is gone.
  std::shared_ptr<Memory> take(size_t bytes);

 private:
  struct Kept {
    explicit Kept(size_t limit) : most(limit) {}
    void give(Memory memory);

    const size_t most;
    std::mutex mutex;
    std::list<Memory> idle;  // the longest unused first
    size_t bytes = 0;
  };
  std::shared_ptr<Kept> kept_;
};

}  // namespace stet
