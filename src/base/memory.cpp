#include "stet/base/memory.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <utility>

namespace stet {
namespace {
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPage = 4096;
}  // namespace

Memory::Memory(size_t bytes, bool huge) : size_((bytes + kPage - 1) / kPage * kPage) {
  if (size_ < bytes) throw std::bad_alloc();
  if (size_ == 0) return;
  // Reserving one huge page more than needed lets the block start on a huge-page boundary.
  const size_t slack = huge && size_ >= kHugePage ? kHugePage : 0;
  void* p = mmap(nullptr, size_ + slack, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<std::byte*>(p);
  if (slack != 0) {
    const size_t head = (kHugePage - reinterpret_cast<uintptr_t>(p) % kHugePage) % kHugePage;
    if (head != 0) munmap(data_, head);
    data_ += head;
    if (slack != head) munmap(data_ + size_, slack - head);
    madvise(data_, size_ / kHugePage * kHugePage, MADV_HUGEPAGE);
  }
}

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Memory::~Memory() {
  if (data_ != nullptr) munmap(data_, size_);
}

void Memory::release(size_t offset, size_t bytes) const {
  madvise(data_ + offset, bytes, MADV_DONTNEED);  // private anonymous pages
}

void Memory::use_small_pages() const { madvise(data_, size_, MADV_NOHUGEPAGE); }

void release_pages(std::byte* at, size_t bytes) {
  const size_t before = (kPage - reinterpret_cast<uintptr_t>(at) % kPage) % kPage;
  if (bytes < before + kPage) return;
  madvise(at + before, (bytes - before) / kPage * kPage, MADV_DONTNEED);
}

}  // namespace stet
