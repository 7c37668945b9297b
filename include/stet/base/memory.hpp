// Large zero-initialized memory directly from the system: page-aligned, committed when touched, and
// in 2 MB pages if available.
#pragma once

#include <cstddef>
#include <span>

#include "stet/api.h"

namespace stet {

// A range of such memory. Movable; frees the memory when destroyed.
class STET_API Memory {
 public:
  Memory() = default;
  // Throws std::bad_alloc when the address space is exhausted. `huge` asks for 2 MB pages.
  explicit Memory(size_t bytes, bool huge = true);
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  ~Memory();

  // Returns whole pages to the system; they read as zeros afterwards.
  void release(size_t offset, size_t bytes) const;
  // Switches to 4 KB pages, so that parts can be released.
  void use_small_pages() const;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Like Memory::release, for the whole pages inside a range of such memory.
STET_API void release_pages(std::byte* at, size_t bytes);

}  // namespace stet
