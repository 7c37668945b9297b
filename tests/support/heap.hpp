// Counts a test program's heap allocations and makes chosen ones fail. A program that includes this
// header links heap.cpp, which replaces operator new.
#pragma once

#include <atomic>
#include <cstdint>

namespace stet::test::heap {

inline std::atomic<int64_t> allocations{0};
// Number of allocations that still succeed before one fails. Negative: none fails.
inline std::atomic<int64_t> allocations_left{-1};
inline thread_local uint64_t bytes = 0;  // total bytes that this thread has allocated

}  // namespace stet::test::heap

// Clang's sanitizers define these operators themselves and allow no other definition. Nothing is
// counted there.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define STET_OPERATOR_NEW_IS_TAKEN 1
#endif
#endif
