// What a test program takes from the heap, counted and made to fail through operator new. To be
// included by one file of a program, because it defines these operators.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace heap {

inline std::atomic<int64_t> allocations{0};
inline std::atomic<int64_t> allocations_left{
    -1};                                 // the one after so many fails; negative: none does
inline thread_local uint64_t bytes = 0;  // ever taken by this thread

[[maybe_unused]] inline void* allocate(size_t size) {
  ++allocations;
  bytes += size;
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
  if (void* p = std::malloc(size == 0 ? 1 : size)) return p;
  throw std::bad_alloc();
}

}  // namespace heap

// Clang's sanitizers define these operators themselves, and suffer no others: there nothing is
// counted.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define STET_OPERATOR_NEW_IS_TAKEN 1
#endif
#endif

#ifndef STET_OPERATOR_NEW_IS_TAKEN
// Not inlined: g++ 12 takes free() next to an inlined new for a mismatch.
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
