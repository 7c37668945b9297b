#include "stet/files/file.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string_view>
#include <system_error>
#include <utility>

#include "src/files/io_error.hpp"
#include "stet/base/error.hpp"

namespace stet {
namespace {

constexpr size_t kBufferSize = 1 << 16;
constexpr std::string_view kTemporaryMark = ".tmp-";
constexpr size_t kTemporaryDigits = 16;
constexpr size_t kLongestName = 255;  // NAME_MAX of Linux's file systems

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// Repeats a system call that a signal interrupted.
template <class SystemCall>
auto retried(SystemCall call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

int open_for_reading(const std::string& path, int flags, struct stat* info) {
  const int fd = retried([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags); });
  if (fd < 0) throw_io(path, "cannot be read", errno);
  if (::fstat(fd, info) == 0 && !S_ISDIR(info->st_mode)) return fd;
  const int error = S_ISDIR(info->st_mode) ? EISDIR : errno;
  ::close(fd);
  throw_io(path, "cannot be read", error);
}

void check_regular(const std::string& path, const struct stat& info) {
  if (!S_ISREG(info.st_mode))
    throw Error(ErrorKind::io, path, "", "a regular file", "a device or pipe");
}

// Reads a file. May block only if `stream` is true: the input is then one that the user named.
template <typename Buffer>
Buffer read_whole(const std::string& path, size_t limit, bool stream = false) {
  limit = std::min(limit, SIZE_MAX / 4);  // so that the sums below cannot wrap
  struct stat info = {};
  const Descriptor file(open_for_reading(path, stream ? 0 : O_NONBLOCK, &info));
  if (!stream) check_regular(path, info);
  // One byte more than the size, so that a read finds the end without growing the buffer.
  const size_t expected = info.st_size > 0 ? static_cast<size_t>(info.st_size) : kBufferSize;
  Buffer content(std::min(expected, limit) + 1, {});
  size_t size = 0;
  while (true) {
    const ssize_t count =
        retried([&] { return ::read(file.get(), content.data() + size, content.size() - size); });
    if (count < 0) throw_io(path, "cannot be read", errno);
    if (count == 0) break;
    size += static_cast<size_t>(count);
    if (size > limit) {
      throw Error(ErrorKind::format, path, "", "at most " + std::to_string(limit) + " bytes",
                  "more");
    }
    if (size == content.size()) content.resize(std::min(2 * size, limit + 1));
  }
  content.resize(size);
  return content;
}

// Returns the start of the names of a target's temporaries. Cuts a target's name that leaves no
// room for the digits.
std::string temporary_start(std::string_view target) {
  constexpr size_t kMost = kLongestName - kTemporaryMark.size() - kTemporaryDigits;
  return std::string(target.substr(0, kMost)) + std::string(kTemporaryMark);
}

bool is_temporary(std::string_view name, std::string_view start) {
  return name.size() == start.size() + kTemporaryDigits && name.starts_with(start) &&
         name.find_first_not_of("0123456789abcdef", start.size()) == std::string_view::npos;
}

// Removes abandoned temporaries. Every writer holds a lock on its own, so one that can be locked
// has lost its writer. Files of other users stay.
void remove_abandoned(const std::string& directory, const std::string& start) {
  DIR* stream = ::opendir(directory.c_str());
  if (stream == nullptr) return;
  while (const dirent* entry = ::readdir(stream)) {
    if (!is_temporary(entry->d_name, start)) continue;
    const Descriptor file(
        ::openat(::dirfd(stream), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    struct stat info = {};
    if (file.get() < 0 || ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode) ||
        info.st_uid != ::geteuid())
      continue;
    if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
      ::unlinkat(::dirfd(stream), entry->d_name, 0);
    }
  }
  ::closedir(stream);
}

// Returns the path behind all links. That file need not exist.
std::string resolve_links(const std::string& path) {
  constexpr int kMostLinks = 40;  // the system's limit
  std::filesystem::path at = path;
  std::error_code error;
  for (int links = 0; std::filesystem::is_symlink(std::filesystem::symlink_status(at, error));
       ++links) {
    if (links == kMostLinks) throw_io(path, "cannot be written", ELOOP);
    const std::filesystem::path target = std::filesystem::read_symlink(at, error);
    if (error) throw_io(path, "the link cannot be read", error.value());
    at = target.is_absolute() ? target : at.parent_path() / target;
  }
  return at.string();
}

// Throws if the process may not write a file. A rename would replace it all the same, because the
// system asks for permission to write the directory alone.
void check_permission(const std::string& path, const std::string& target) {
  if (::faccessat(AT_FDCWD, target.c_str(), W_OK, AT_EACCESS) == 0) return;
  if (errno != EACCES && errno != EPERM) return;
  throw Error(ErrorKind::io, path, "", "",
              "the file is write-protected; name another, or change its permissions");
}

std::string random_digits() {
  std::random_device device;
  char digits[kTemporaryDigits + 1];
  std::snprintf(digits, sizeof digits, "%08x%08x", device(), device());
  return digits;
}

}  // namespace

std::vector<std::byte> read_file(const std::string& path, size_t limit) {
  return read_whole<std::vector<std::byte>>(path, limit);
}

std::string read_text_file(const std::string& path, size_t limit) {
  return read_whole<std::string>(path, limit);
}

std::string read_text_input(const std::string& path, size_t limit) {
  const bool given =
      path == "/dev/stdin" || path.starts_with("/dev/fd/") || path.starts_with("/proc/self/fd/");
  return read_whole<std::string>(path, limit, given);
}

FileContent read_file_to_memory(const std::string& path) {
  struct stat info = {};
  const Descriptor file(open_for_reading(path, O_NONBLOCK, &info));  // so that a pipe cannot block
  check_regular(path, info);
  const auto size = static_cast<size_t>(info.st_size);
  FileContent content{Memory(size), size};
  for (size_t at = 0; at < size;) {
    const ssize_t count =
        retried([&] { return ::read(file.get(), content.memory.data() + at, size - at); });
    if (count < 0) throw_io(path, "cannot be read", errno);
    if (count == 0)
      throw Error(ErrorKind::io, path, "size", std::to_string(size) + " bytes", std::to_string(at));
    at += static_cast<size_t>(count);
  }
  return content;
}

AtomicFile::AtomicFile(std::string path, unsigned mode, Existing existing)
    : path_(std::move(path)), target_(existing == Existing::follow ? resolve_links(path_) : path_) {
  const size_t slash = target_.rfind('/');
  directory_ = slash == std::string::npos ? "." : slash == 0 ? "/" : target_.substr(0, slash);
  const std::string name = target_.substr(slash == std::string::npos ? 0 : slash + 1);
  if (name.empty())
    throw Error(ErrorKind::io, path_, path_.empty() ? "path" : "", "",
                path_.empty() ? "the name is empty; name a file"
                              : "this is the name of a directory; name a file");

  struct stat old = {};
  const bool there = ::lstat(target_.c_str(), &old) == 0, regular = there && S_ISREG(old.st_mode);
  if (!there && errno == ENAMETOOLONG) throw_io(path_, "cannot be written", errno);
  if (there && !regular && (existing == Existing::follow || S_ISDIR(old.st_mode))) {
    throw Error(ErrorKind::io, path_, "", "a regular file to write",
                S_ISDIR(old.st_mode) ? "a directory" : "a device or pipe");
  }
  if (regular && existing == Existing::follow) check_permission(path_, target_);
  buffer_.reserve(kBufferSize);
  const std::string start = temporary_start(name);
  remove_abandoned(directory_, start);
  create_temporary(target_.substr(0, slash + 1) + start, regular ? 0600 : mode & 0666);
  if (regular) (void)!::fchmod(fd_, old.st_mode & 0777);
}

void AtomicFile::create_temporary(const std::string& start, unsigned mode) {
  while (true) {
    temporary_ = start + random_digits();
    fd_ = retried([&] {
      return ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                    static_cast<mode_t>(mode));
    });
    if (fd_ < 0 && errno == EEXIST) continue;
    if (fd_ < 0) {
      const int error = errno;
      temporary_.clear();
      throw_io(path_, "no file can be made in its directory", error);
    }
    // Between open and flock another writer may take the file for abandoned and remove it. Never
    // waits for another writer's lock.
    struct stat info = {};
    const bool locked = ::flock(fd_, LOCK_EX | LOCK_NB) == 0 ||
                        errno != EWOULDBLOCK;  // some file systems have no locks
    if (locked && ::fstat(fd_, &info) == 0 && info.st_nlink > 0) return;
    ::unlink(temporary_.c_str());
    ::close(fd_);
  }
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void AtomicFile::fail(const std::string& what) {
  const int error = errno;
  discard();
  throw_io(path_, what, error);
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (fd_ < 0)
    throw Error(ErrorKind::io, path_, "", "", "the file has been committed or has failed before");
  written_ += bytes.size();
  if (buffer_.size() + bytes.size() > kBufferSize) flush();
  if (bytes.size() >= kBufferSize) {
    write_through(bytes);
  } else {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
}

void AtomicFile::flush() {
  write_through(buffer_);
  buffer_.clear();
}

void AtomicFile::write_through(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = retried([&] { return ::write(fd_, bytes.data(), bytes.size()); });
    if (count == 0) errno = ENOSPC;
    if (count <= 0) fail("cannot write " + std::to_string(written_) + " bytes");
    bytes = bytes.subspan(static_cast<size_t>(count));
    in_file_ += static_cast<uint64_t>(count);
  }
  start_writeback();
}

// Starts writing buffered pages to the disk while the rest is still being computed and copied, so
// that fsync has less to wait for.
void AtomicFile::start_writeback() noexcept {
  constexpr uint64_t kStep = 16 << 20;
  if (in_file_ - on_its_way_ < kStep) return;
#ifdef SYNC_FILE_RANGE_WRITE
  // This is only advice: fsync would report any error.
  (void)!::sync_file_range(fd_, static_cast<off64_t>(on_its_way_),
                           static_cast<off64_t>(in_file_ - on_its_way_), SYNC_FILE_RANGE_WRITE);
#endif
  on_its_way_ = in_file_;
}

void AtomicFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  write({});
  flush();
  while (!bytes.empty()) {
    const ssize_t count = retried(
        [&] { return ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset)); });
    if (count == 0) errno = ENOSPC;
    if (count <= 0) fail("cannot write " + std::to_string(written_) + " bytes");
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
}

const std::string& AtomicFile::uncommitted() {
  write({});
  flush();
  return temporary_;
}

// Every step but the last comes before the rename, so that a failure leaves the older file in
// place.
void AtomicFile::commit() {
  write({});
  flush();
  // A directory without read permission cannot be opened; in that case the whole file system is
  // synced.
  const Descriptor directory(
      retried([&] { return ::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (directory.get() < 0 && errno != EACCES) fail("its directory cannot be opened");
  if (retried([&] { return ::fsync(fd_); }) != 0) fail("its bytes did not reach the disk");
  if (retried([&] { return ::rename(temporary_.c_str(), target_.c_str()); }) != 0)
    fail("the temporary file cannot be renamed to this name");
  temporary_.clear();
  int synced = directory.get() >= 0 ? retried([&] { return ::fsync(directory.get()); }) : -1;
  if (directory.get() < 0 || (synced != 0 && errno == EINVAL))
    synced = retried([&] { return ::syncfs(fd_); });
  const int error = errno;
  ::close(std::exchange(fd_, -1));  // fsync has reported any error already
  if (synced == 0) return;
  throw Error(ErrorKind::io, path_, "durability", "",
              "the new file is in place, but a loss of power may undo that: " +
                  std::generic_category().message(error));
}

}  // namespace stet
