#include "tests/support/heap.hpp"

#include <cstdlib>
#include <new>

#ifndef STET_OPERATOR_NEW_IS_TAKEN
namespace stet::test::heap {
namespace {

void* allocate(size_t size) {
  ++allocations;
  bytes += size;
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
  if (void* p = std::malloc(size == 0 ? 1 : size)) return p;
  throw std::bad_alloc();
}

}  // namespace
}  // namespace stet::test::heap

namespace heap = stet::test::heap;

// Not inlined: otherwise g++ 12 warns that free() does not match new.
[[gnu::noinline]] void* operator new(size_t size) { return heap::allocate(size); }
[[gnu::noinline]] void* operator new[](size_t size) { return heap::allocate(size); }
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  try {
    return heap::allocate(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, size_t) noexcept { std::free(p); }
#endif
