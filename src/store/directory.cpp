#include "src/store/directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "src/store/text.hpp"
#include "stet/base/error.hpp"
#include "stet/files/file.hpp"

namespace stet {
namespace {

namespace fs = std::filesystem;

constexpr char kStoreFile[] = "stet-store", kStoreHead[] = "stet store 1";
constexpr size_t kSmallFile = size_t{1} << 20;  // of names and leases
constexpr uint64_t kSpare = 65536;              // what a file takes beside its bytes, at most

[[noreturn]] void system_failed(const std::string& path, const std::string& expected) {
  throw Error(ErrorKind::io, path, "", expected, std::generic_category().message(errno));
}

// Held while files are removed or replaced, by one process at a time.
class DirectoryLock {
 public:
  // `mode`: of a file that is not there yet.
  DirectoryLock(const std::string& path, unsigned mode)
      : fd_(::open(path.c_str(), O_RDWR | O_CLOEXEC)) {
    if (fd_ < 0 && errno == ENOENT) {
      fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
      if (fd_ >= 0) ::fchmod(fd_, mode);
    }
    if (fd_ < 0) system_failed(path, "a lock file that can be opened");
    while (::flock(fd_, LOCK_EX) != 0) {
      if (errno == EINTR) continue;
      ::close(fd_);
      system_failed(path, "a lock");
    }
  }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  ~DirectoryLock() { ::close(fd_); }

 private:
  int fd_;
};

class DirectoryStore : public StoreBackend {
 public:
  DirectoryStore(std::string path, StoreClock clock)
      : StoreBackend({.latency_seconds = 1e-4, .byte_seconds = 1e-9, .write_byte_seconds = 2e-9}),
        path_(std::move(path)),
        url_("dir:" + path_),
        clock_(std::move(clock)) {
    struct stat info = {};
    if (::stat((path_ + "/" + kStoreFile).c_str(), &info) != 0) {
      throw Error(ErrorKind::io, path_, "store", "a store (stet store init makes one)",
                  fs::exists(path_) ? "another directory" : "nothing");
    }
    std::istringstream lines(read_text_file(path_ + "/" + kStoreFile, kSmallFile));
    std::string head, word;
    std::getline(lines, head);
    if (head != kStoreHead)
      throw Error(ErrorKind::unsupported, path_ + "/" + kStoreFile, "first line", kStoreHead,
                  printable(head, 60));
    if (!(lines >> word >> budget_) || word != "budget")
      throw Error(ErrorKind::format, path_ + "/" + kStoreFile, "budget", "\"budget BYTES\"",
                  "another line");
    if (::stat(path_.c_str(), &info) == 0) mode_ = info.st_mode & 0666;
  }

  const std::string& url() const override { return url_; }

  std::vector<std::optional<StoredBytes>> read(Shelf shelf,
                                               std::span<const Sha256> names) override {
    std::vector<std::optional<StoredBytes>> found(names.size());
    for (size_t i = 0; i < names.size(); ++i) {
      const std::string path = path_of(shelf, names[i]);
      if (!stamp(path)) continue;
      try {
        auto file = MappedFile::open(path);
        const std::span<const std::byte> bytes = file->bytes();
        found[i] = StoredBytes{bytes, file, file};
      } catch (const Error& e) {
        // An empty file is a damaged record; one that is gone was evicted meanwhile.
        if (e.kind == ErrorKind::format) found[i] = StoredBytes{{}, nullptr, nullptr};
        if (e.kind == ErrorKind::io && fs::exists(path)) throw;
      }
    }
    return found;
  }

  std::vector<bool> touch(Shelf shelf, std::span<const Sha256> names) override {
    std::optional<DirectoryLock> lock;
    // Who may only read finds what is there; nobody can mark it.
    if (::access(path_.c_str(), W_OK) == 0) lock.emplace(path_ + "/lock", mode_);
    std::vector<bool> there;
    for (const Sha256& name : names) there.push_back(stamp(path_of(shelf, name)));
    return there;
  }

  size_t write(Shelf shelf, std::span<const NewRecord> records) override {
    std::optional<DirectoryLock> lock;
    uint64_t room = UINT64_MAX;
    if (shelf == Shelf::blocks && budget_ > 0) {
      lock.emplace(path_ + "/lock", mode_);
      uint64_t wanted = 0;
      for (const NewRecord& r : records) wanted += r.front.size() + r.payload.size();
      room = make_room(std::min(wanted, budget_));
    }
    size_t kept = 0;
    for (const NewRecord& r : records) {
      const uint64_t bytes = r.front.size() + r.payload.size();
      if (bytes > room) break;
      room -= bytes;
      const std::string path = path_of(shelf, r.name);
      try {
        if (r.file == nullptr || !share(r.file->path(), bytes, path)) {
          AtomicFile file(path, mode_);
          file.write(r.front);
          file.write(r.payload);
          file.commit();
        }
      } catch (const Error&) {
        // A full disk takes no blocks; the state, which is small, may still fit.
        if (shelf == Shelf::blocks && is_full(bytes)) break;
        throw;
      }
      stamp(path);
      ++kept;
    }
    return kept;
  }

  void list(Shelf shelf, const std::function<void(const ShelfEntry&)>& each) override {
    for (const std::string& file : files_in(folder_of(shelf))) {
      const auto name = hash_of_hex(file);
      struct stat info = {};
      if (name && ::stat((folder_of(shelf) + "/" + file).c_str(), &info) == 0)
        each({*name, static_cast<uint64_t>(info.st_size), info.st_mtim.tv_sec});
    }
  }

  bool remove(Shelf shelf, const Sha256& name, int64_t unused_since) override {
    const DirectoryLock lock(path_ + "/lock", mode_);
    const std::string path = path_of(shelf, name);
    struct stat info = {};
    if (::stat(path.c_str(), &info) != 0 || info.st_mtim.tv_sec >= unused_since) return false;
    return ::unlink(path.c_str()) == 0;
  }

  std::vector<std::string> names() override {
    std::vector<std::string> found;
    for (std::string& file : files_in(path_ + "/names")) {
      if (is_store_name(file)) found.push_back(std::move(file));
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  std::optional<std::vector<std::byte>> read_name(const std::string& name) override {
    const std::string path = path_ + "/names/" + name;
    if (!fs::exists(path)) return std::nullopt;
    return read_file(path, kSmallFile);
  }

  bool replace_name(const std::string& name, const std::optional<std::vector<std::byte>>& expected,
                    const std::optional<std::vector<std::byte>>& next) override {
    const DirectoryLock lock(path_ + "/lock", mode_);
    if (read_name(name) != expected) return false;
    const std::string path = path_ + "/names/" + name;
    if (next) {
      AtomicFile file(path, mode_);
      file.write(*next);
      file.commit();
    } else if (expected && ::unlink(path.c_str()) != 0) {
      system_failed(path, "a file that can be removed");
    }
    return true;
  }

  void lease(const std::string& holder, std::span<const Sha256> states, int64_t until) override {
    std::string line = std::to_string(until);
    for (const Sha256& id : states) line += " " + hex_of_hash(id);
    line += "\n";
    AtomicFile file(path_ + "/leases/" + holder, mode_);
    file.write(std::as_bytes(std::span(line)));
    file.commit();
  }

  void release(const std::string& holder) override {
    ::unlink((path_ + "/leases/" + holder).c_str());
  }

  std::vector<Sha256> leased() override {
    std::vector<Sha256> states;
    for (const std::string& file : files_in(path_ + "/leases")) {
      if (!hash_of_hex(file)) continue;  // half-written
      const std::string path = path_ + "/leases/" + file;
      try {
        std::istringstream line(read_text_file(path, kSmallFile));
        int64_t until = 0;
        line >> until;
        if (until <= clock_()) {
          ::unlink(path.c_str());
          continue;
        }
        for (std::string id; line >> id;) {
          if (const auto hash = hash_of_hex(id)) states.push_back(*hash);
        }
      } catch (const Error&) {
        // Released meanwhile.
      }
    }
    return states;
  }

  // Temporaries of writers that were killed have names of their own.
  void tidy(int64_t before) override {
    for (const char* folder : {"/blocks", "/states", "/names", "/leases"}) {
      const bool names = folder == std::string_view("/names");
      for (const std::string& file : files_in(path_ + folder)) {
        const std::string path = path_ + folder + "/" + file;
        struct stat info = {};
        const bool known = names ? is_store_name(file) : hash_of_hex(file).has_value();
        if (!known && ::stat(path.c_str(), &info) == 0 && info.st_mtim.tv_sec < before)
          ::unlink(path.c_str());
      }
    }
  }

  std::vector<std::pair<std::string, std::string>> about() override {
    return {{"store", url_}, {"budget", budget_ == 0 ? "none" : std::to_string(budget_)}};
  }

 private:
  // Puts a file of another directory here without writing its bytes: a reflink where the file
  // system has them, else a hard link, where it would be the same file but for its place. False,
  // and nothing has changed, where neither can be.
  bool share(const std::string& from, uint64_t bytes, const std::string& to) const {
    static std::atomic<uint64_t> count{0};
    const std::string aside = fmt::format("{}.shared-{}-{}", to, ::getpid(), ++count);
    const int source = ::open(from.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat info = {};
    bool done = source >= 0 && ::fstat(source, &info) == 0 && S_ISREG(info.st_mode) &&
                static_cast<uint64_t>(info.st_size) == bytes &&
                (is_cloned(source, aside) ||
                 (info.st_uid == ::geteuid() && (info.st_mode & 0777) == mode_ &&
                  ::link(from.c_str(), aside.c_str()) == 0));
    if (source >= 0) ::close(source);
    done = done && ::rename(aside.c_str(), to.c_str()) == 0;
    ::unlink(aside.c_str());  // also where both names were one file's already
    const int folder = done ? ::open(folder_of(Shelf::blocks).c_str(), O_RDONLY | O_CLOEXEC) : -1;
    if (folder >= 0) {
      ::fsync(folder);
      ::close(folder);
    }
    return done;
  }
  bool is_cloned(int source, const std::string& to) const {
    const int fd = ::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode_);
    if (fd < 0) return false;
    const bool done = ::ioctl(fd, FICLONE, source) == 0 && ::fsync(fd) == 0;
    ::close(fd);
    if (!done) ::unlink(to.c_str());
    return done;
  }
  // Whether the file system has no room for that many bytes more.
  bool is_full(uint64_t bytes) const {
    struct statvfs info = {};
    return ::statvfs(path_.c_str(), &info) == 0 && info.f_bavail * info.f_frsize < bytes + kSpare;
  }

  std::string folder_of(Shelf shelf) const {
    return path_ + (shelf == Shelf::blocks ? "/blocks" : "/states");
  }
  std::string path_of(Shelf shelf, const Sha256& name) const {
    return folder_of(shelf) + "/" + hex_of_hash(name);
  }

  // The file counts as used now; false where there is none. Only its owner may set a time; others
  // who may write to it can say "now", and those who may not leave it as it is.
  bool stamp(const std::string& path) const {
    const timespec now = {clock_(), 0};
    const timespec times[] = {now, now};
    if (::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0 || (errno == EPERM && touched(path)))
      return true;
    return errno != ENOENT && ::access(path.c_str(), F_OK) == 0;
  }
  static bool touched(const std::string& path) {
    return ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0) == 0;
  }

  static std::vector<std::string> files_in(const std::string& folder) {
    std::vector<std::string> files;
    std::error_code error;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
      files.push_back(at->path().filename().string());
    if (error) throw Error(ErrorKind::io, folder, "", "a readable directory", error.message());
    return files;
  }

  // Blocks that were used longest ago go until `wanted` bytes more are within the budget. What
  // other writers have half-written counts. Returns the bytes that there is room for.
  uint64_t make_room(uint64_t wanted) {
    struct File {
      std::string path;
      uint64_t bytes;
      int64_t used;
    };
    std::vector<File> files;
    uint64_t total = 0;
    for (const std::string& file : files_in(path_ + "/blocks")) {
      struct stat info = {};
      const std::string path = path_ + "/blocks/" + file;
      if (::stat(path.c_str(), &info) != 0) continue;
      total += static_cast<uint64_t>(info.st_size);
      if (hash_of_hex(file))
        files.push_back({path, static_cast<uint64_t>(info.st_size), info.st_mtim.tv_sec});
    }
    std::sort(files.begin(), files.end(),
              [](const File& a, const File& b) { return a.used < b.used; });
    for (const File& file : files) {
      if (total + wanted <= budget_) break;
      if (::unlink(file.path.c_str()) == 0) total -= file.bytes;
    }
    return total >= budget_ ? 0 : budget_ - total;
  }

  std::string path_, url_;
  StoreClock clock_;
  uint64_t budget_ = 0;
  unsigned mode_ = 0600;
};

}  // namespace

void create_directory_store(const std::string& path, uint64_t budget) {
  std::error_code error;
  const bool made = fs::create_directories(path, error);
  if (error) throw Error(ErrorKind::io, path, "", "a directory that can be made", error.message());
  if (made) ::chmod(path.c_str(), 0700);
  if (fs::exists(path + "/" + kStoreFile))
    throw Error(ErrorKind::argument, path, "store", "a directory without one", "a store");
  struct stat info = {};
  ::stat(path.c_str(), &info);
  for (const char* folder : {"/blocks", "/states", "/names", "/leases"}) {
    fs::create_directory(path + folder, error);
    if (error) throw Error(ErrorKind::io, path + folder, "", "a new directory", error.message());
    ::chmod((path + folder).c_str(), info.st_mode & 07777);
  }
  AtomicFile file(path + "/" + kStoreFile, info.st_mode & 0666);
  const std::string text = fmt::format("{}\nbudget {}\n", kStoreHead, budget);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

std::unique_ptr<StoreBackend> open_directory_store(const std::string& path, StoreClock clock) {
  return std::make_unique<DirectoryStore>(path, std::move(clock));
}

}  // namespace stet
