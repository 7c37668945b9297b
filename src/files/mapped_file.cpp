#include "stet/files/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "src/files/io_error.hpp"
#include "src/files/mapping_guard.hpp"
#include "stet/base/error.hpp"

namespace stet {

class MappedFile::Guard : public MappingGuard {
  using MappingGuard::MappingGuard;
};

namespace {

int64_t nanoseconds(const struct timespec& time) {
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

FileStamp stamp_of(const struct stat& info) {
  return {info.st_dev,
          info.st_ino,
          info.st_size,
          nanoseconds(info.st_mtim),
          nanoseconds(info.st_ctim),
          0};
}

int open_retrying(const std::string& path) {
  int fd;
  do {
    fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // so that a pipe cannot block
  } while (fd < 0 && errno == EINTR);
  return fd;
}

size_t page_bytes() {
  static const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return page;
}

constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, which older headers lack

}  // namespace

MappedFile::~MappedFile() {
  guard_.reset();
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  if (fd_ >= 0) ::close(fd_);
}

FileStamp MappedFile::stamp() const {
  struct stat now = {};
  if (::fstat(fd_, &now) != 0) return {};
  FileStamp stamp = stamp_of(now);
  stamp.read_failures = guard_->read_failures();
  return stamp;
}

void MappedFile::check_unchanged() const {
  const FileStamp now = stamp();
  if (now.size != opened_.size) {
    throw Error(ErrorKind::io, path_, "", "",
                "the file changed while it was in use: it had " + std::to_string(opened_.size) +
                    " bytes and has " + std::to_string(now.size));
  }
  if (now.read_failures != opened_.read_failures)
    throw Error(ErrorKind::io, path_, "", "",
                "the file changed while it was in use: some pages could not be read");
  if (now != opened_)
    throw Error(ErrorKind::io, path_, "", "",
                "the file changed while it was in use: it was written to");
}

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  std::shared_ptr<MappedFile> mapped(new MappedFile);
  mapped->path_ = path;
  mapped->fd_ = open_retrying(path);
  struct stat info = {};
  if (mapped->fd_ < 0 || ::fstat(mapped->fd_, &info) != 0) throw_io(path, "cannot be read", errno);
  if (S_ISDIR(info.st_mode)) throw_io(path, "cannot be read", EISDIR);
  if (!S_ISREG(info.st_mode))
    throw Error(ErrorKind::io, path, "", "a regular file", "a device or pipe");
  if (info.st_size == 0) throw Error(ErrorKind::format, path, "", "a file with content", "0 bytes");
  const auto size = static_cast<size_t>(info.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, mapped->fd_, 0);
  if (address == MAP_FAILED) throw_io(path, "cannot be mapped", errno);
  mapped->bytes_ = {static_cast<const std::byte*>(address), size};
  mapped->guard_ = std::make_unique<Guard>(address, size);
  mapped->opened_ = stamp_of(info);
  return mapped;
}

void MappedFile::drop(size_t offset, size_t size) const {
  if (offset > bytes_.size() || size > bytes_.size() - offset) return;
  const size_t begin = (offset + page_bytes() - 1) / page_bytes() * page_bytes();
  const size_t end = (offset + size) / page_bytes() * page_bytes();
  if (begin >= end) return;
  ::madvise(const_cast<std::byte*>(bytes_.data()) + begin, end - begin, MADV_DONTNEED);
}

void MappedFile::populate(size_t offset, size_t size) const {
  if (offset > bytes_.size() || size > bytes_.size() - offset) return;
  const size_t begin = offset / page_bytes() * page_bytes();
  ::madvise(const_cast<std::byte*>(bytes_.data()) + begin, offset + size - begin, kPopulateRead);
}

}  // namespace stet
