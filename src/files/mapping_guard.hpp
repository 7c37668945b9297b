// Guards memory whose pages may become unreadable, because a mapped file is truncated.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stet {

// Makes reads of the given memory return zeros instead of raising SIGBUS. The handler puts empty
// pages in place of the unreadable page and all that follow it in the range.
class MappingGuard {
 public:
  MappingGuard(const void* begin, size_t size);
  ~MappingGuard();
  MappingGuard(const MappingGuard&) = delete;
  MappingGuard& operator=(const MappingGuard&) = delete;

  uint64_t read_failures() const;  // number of such replacements

 private:
  struct GuardedRange* range_;
};

}  // namespace stet
