// An LD_PRELOAD library that makes file operations fail, or kills the process at them. It watches
// the calls that create or change files below one directory: open (of a new file), write and its
// variants, fsync, fdatasync, rename, close. Calls are numbered from 1.
//
//   STET_FAULT_DIR    the directory, as a path without links
//   STET_FAULT_LOG    a file that gets a line "NUMBER CALL SIZE PATH" before each call
//   STET_FAULT        KIND@N: fault at call N; KIND%S: at about every third call, drawn with seed S.
//                     KIND is one of
//                       short   a write takes the first half of its bytes (other calls are not changed)
//                       eintr, enospc, eio   the call fails without an effect, but close does close
//                       kill    SIGKILL before the call
//                       killed  SIGKILL after the call
//                       int     SIGINT before the call
//   STET_FAULT_DELAY  microseconds that each call waits
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

const char* setting(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

struct Settings {
  const char* directory = setting("STET_FAULT_DIR");
  const char* log = setting("STET_FAULT_LOG");
  long delay = std::atol(setting("STET_FAULT_DELAY"));
  char kind[16] = "";
  bool random = false;
  unsigned long number = 0;  // number of the call, or the seed

  Settings() {
    const char* fault = setting("STET_FAULT");
    const size_t length = std::strcspn(fault, "@%");
    if (fault[length] == '\0' || length >= sizeof kind) return;
    std::memcpy(kind, fault, length);
    random = fault[length] == '%';
    number = std::strtoul(fault + length + 1, nullptr, 10);
  }
};

const Settings& settings() {
  static const Settings s;
  return s;
}

bool watched(const char* path) {
  const size_t length = std::strlen(settings().directory);
  return length > 0 && std::strncmp(path, settings().directory, length) == 0;
}

// The path of an open file, or "".
struct Path {
  char text[PATH_MAX] = "";
  explicit Path(int fd) {
    char link[32];
    std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = ::readlink(link, text, sizeof text - 1);
    text[length < 0 ? 0 : length] = '\0';
  }
};

unsigned long mixed(unsigned long x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

// One intercepted call. The shim's own work uses syscall(), which bypasses the shim.
class Call {
 public:
  Call(const char* name, const char* path, size_t size) : watched_(watched(path)) {
    static std::atomic<unsigned long> calls{0};
    if (!watched_) return;
    const Settings& s = settings();
    const unsigned long number = ++calls;
    char line[PATH_MAX + 64];
    const int length =
        std::snprintf(line, sizeof line, "%lu %s %zu %s\n", number, name, size, path);
    const long log =
        ::syscall(SYS_openat, AT_FDCWD, s.log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    ::syscall(SYS_write, log, line, length);
    ::syscall(SYS_close, log);
    if (s.delay > 0) ::usleep(static_cast<unsigned>(s.delay));
    chosen_ = s.random ? mixed(s.number * 1000003 + number) % 3 == 0 : number == s.number;
    if (is("kill")) ::kill(::getpid(), SIGKILL);
    if (is("int")) ::raise(SIGINT);
  }
  ~Call() {
    if (is("killed")) ::kill(::getpid(), SIGKILL);
  }
  bool shortened() const { return is("short"); }
  // Returns true and sets errno if the call must fail.
  bool fails() const {
    const int error = is("eintr") ? EINTR : is("enospc") ? ENOSPC : is("eio") ? EIO : 0;
    if (error != 0) errno = error;
    return error != 0;
  }

 private:
  bool is(const char* kind) const {
    return watched_ && chosen_ && std::strcmp(settings().kind, kind) == 0;
  }

  bool watched_, chosen_ = false;
};

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

template <class Write>
ssize_t write_some(const char* name, int fd, size_t size, Write write) {
  const Path path(fd);
  const Call call(name, path.text, size);
  if (call.fails()) return -1;
  return write(call.shortened() && size > 1 ? size / 2 : size);
}

size_t total(const iovec* pieces, int count) {
  size_t size = 0;
  for (int i = 0; i < count; ++i) size += pieces[i].iov_len;
  return size;
}

int sync_with(const char* name, int fd) {
  const Path path(fd);
  const Call call(name, path.text, 0);
  return call.fails() ? -1 : next<int(int)>(name)(fd);
}

int open_with(const char* name, const char* path, int flags, mode_t mode) {
  const auto real = next<int(const char*, int, ...)>(name);
  if ((flags & O_CREAT) == 0) return real(path, flags, mode);
  const Call call("open", path, 0);
  return call.fails() ? -1 : real(path, flags, mode);
}

mode_t mode_of(int flags, va_list list) {
  return (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* bytes, size_t size) {
  return write_some("write", fd, size, [&](size_t n) {
    return next<ssize_t(int, const void*, size_t)>("write")(fd, bytes, n);
  });
}

ssize_t pwrite(int fd, const void* bytes, size_t size, off_t at) {
  return write_some("write", fd, size, [&](size_t n) {
    return next<ssize_t(int, const void*, size_t, off_t)>("pwrite")(fd, bytes, n, at);
  });
}

ssize_t pwrite64(int fd, const void* bytes, size_t size, off64_t at) {
  return pwrite(fd, bytes, size, at);
}

// A short writev writes a part of its first piece alone.
ssize_t writev(int fd, const iovec* pieces, int count) {
  return write_some("write", fd, total(pieces, count), [&](size_t n) {
    const bool whole = n == total(pieces, count);
    return next<ssize_t(int, const iovec*, int)>("writev")(fd, pieces, whole ? count : 1);
  });
}

ssize_t pwritev(int fd, const iovec* pieces, int count, off_t at) {
  return write_some("write", fd, total(pieces, count), [&](size_t n) {
    const bool whole = n == total(pieces, count);
    return next<ssize_t(int, const iovec*, int, off_t)>("pwritev")(fd, pieces, whole ? count : 1,
                                                                   at);
  });
}

ssize_t pwritev64(int fd, const iovec* pieces, int count, off64_t at) {
  return pwritev(fd, pieces, count, at);
}

int fsync(int fd) { return sync_with("fsync", fd); }
int fdatasync(int fd) { return sync_with("fdatasync", fd); }

int rename(const char* from, const char* to) noexcept {
  const Call call("rename", to, 0);
  return call.fails() ? -1 : next<int(const char*, const char*)>("rename")(from, to);
}

int close(int fd) {
  const auto real = next<int(int)>("close");
  if ((::fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY) return real(fd);
  const Path path(fd);
  const Call call("close", path.text, 0);
  const int result = real(fd);
  return call.fails() ? -1 : result;
}

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  return open_with("open", path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = mode_of(flags, list);
  va_end(list);
  return open_with("open64", path, flags, mode);
}

}  // extern "C"
