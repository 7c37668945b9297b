#include "src/store/block_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

namespace stet {
namespace {
constexpr size_t kPageBytes = 4096;
}

std::shared_ptr<Memory> BlockMemory::take(size_t bytes) {
  Memory memory;
  {
    const std::lock_guard lock(pool_->mutex);
    // At most the rest of a page larger than requested.
    const auto found = std::ranges::find_if(pool_->idle, [&](const Memory& m) {
      return m.size() >= bytes && m.size() - bytes < kPageBytes;
    });
    if (found != pool_->idle.end()) {
      memory = std::move(*found);
      pool_->idle.erase(found);
      pool_->bytes -= memory.size();
    }
  }
  if (memory.data() == nullptr) memory = Memory(bytes);
  const std::weak_ptr<Pool> back = pool_;
  return {new Memory(std::move(memory)), [back](Memory* m) {
            const std::unique_ptr<Memory> owned(m);
            if (const auto kept = back.lock()) kept->give(std::move(*owned));
          }};
}

void BlockMemory::Pool::give(Memory memory) {
  ::madvise(memory.data(), memory.size(), MADV_FREE);  // private anonymous pages
  std::list<Memory> one, evicted;                      // unmapped after unlocking
  try {
    one.push_back(std::move(memory));
  } catch (const std::bad_alloc&) {
    return;  // `memory` is returned to the system
  }
  const std::lock_guard lock(mutex);
  bytes += one.front().size();
  idle.splice(idle.end(), one);
  while (bytes > most) {
    bytes -= idle.front().size();
    evicted.splice(evicted.end(), idle, idle.begin());
  }
}

}  // namespace stet
