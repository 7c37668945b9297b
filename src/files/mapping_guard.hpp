// Memory whose pages may become unreadable: a file's, which somebody cuts off.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stet {

// While an object of this class lives, a read of the given memory that raises SIGBUS finds zeros
// instead: the handler puts empty pages in the place of the one that cannot be read and of all
// behind it.
class MappingGuard {
 public:
  MappingGuard(const void* begin, size_t size);
  ~MappingGuard();
  MappingGuard(const MappingGuard&) = delete;
  MappingGuard& operator=(const MappingGuard&) = delete;

  uint64_t torn() const;  // how often that has happened

 private:
  struct GuardedRange* range_;
};

}  // namespace stet
