// What a test program takes from the heap, counted and made to fail. A program that includes this
// links heap.cpp, which defines operator new.
#pragma once

#include <atomic>
#include <cstdint>

namespace stet::test::heap {

inline std::atomic<int64_t> allocations{0};
// The one after so many fails; negative: none does.
inline std::atomic<int64_t> allocations_left{-1};
inline thread_local uint64_t bytes = 0;  // ever taken by this thread

}  // namespace stet::test::heap

// Clang's sanitizers define these operators themselves, and suffer no others: there nothing is
// counted.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define STET_OPERATOR_NEW_IS_TAKEN 1
#endif
#endif
