// Replaces the C library's functions of these names. Callers may use open() or open64(), so both are
// defined; with _FILE_OFFSET_BITS, one would be renamed to the other.
#undef _FILE_OFFSET_BITS
#include "tests/store/dying_files.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <ctime>

stet::test::Death stet::test::death;

namespace {

using stet::test::death;

time_t passed = 0;  // seconds of waiting skipped by a dead process

// Counts a call. Returns false if this call kills the process, or if the process is dead already.
bool lives() {
  if (death.dead) return false;
  death.dead = death.left >= 0 && death.left-- == 0;
  return !death.dead;
}

int killed() {
  errno = EIO;
  return -1;
}

int open_dying(const char* path, int flags, mode_t mode) {
  if ((flags & O_CREAT) != 0 && !lives()) return killed();
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  return open_dying(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  return open_dying(path, flags, mode);
}

ssize_t write(int fd, const void* bytes, size_t size) {
  const bool last = !death.dead;
  if (lives()) return ::syscall(SYS_write, fd, bytes, size);
  if (last) (void)!::syscall(SYS_write, fd, bytes, size / 2);
  return killed();
}

ssize_t send(int fd, const void* bytes, size_t size, int flags) {
  const bool last = !death.dead;
  if (lives()) return ::syscall(SYS_sendto, fd, bytes, size, flags, nullptr, 0);
  if (last) (void)!::syscall(SYS_sendto, fd, bytes, size / 2, flags, nullptr, 0);
  return killed();
}

int connect(int fd, const sockaddr* to, socklen_t size) {
  if (death.dead) return killed();
  return static_cast<int>(::syscall(SYS_connect, fd, to, size));
}

int rename(const char* from, const char* to) noexcept {
  if (!lives()) return killed();
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

int unlink(const char* path) noexcept {
  if (!lives()) return killed();
  return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}

int utimensat(int at, const char* path, const timespec* times, int flags) noexcept {
  if (!lives()) return killed();
  return static_cast<int>(::syscall(SYS_utimensat, at, path, times, flags));
}

int fsync(int) { return lives() ? 0 : killed(); }

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  if (death.dead) passed += 10;
  const long result = ::syscall(SYS_clock_gettime, clock, now);
  if (clock == CLOCK_MONOTONIC) now->tv_sec += passed;
  return static_cast<int>(result);
}

}  // extern "C"
