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
#include <charconv>
#include <filesystem>
#include <initializer_list>
#include <string_view>
#include <system_error>
#include <utility>

#include "src/store/directory_files.hpp"
#include "src/store/text.hpp"
#include "stet/base/error.hpp"
#include "stet/files/file.hpp"

namespace stet {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kShared = ".shared-";
constexpr size_t kSmallFile = size_t{1} << 20;  // limit for names and leases
constexpr uint64_t kSpare = 65536;              // bytes that a file may need beyond its size

// Returns the final name of a temporary file (AtomicFile, DirectoryStore::share), or "" if it is
// not one.
std::string final_name_of(const std::string& file) {
  const size_t temporary = file.rfind(kTemporary), shared = file.rfind(kShared);
  if (temporary != std::string::npos) {
    const std::string_view digits = std::string_view(file).substr(temporary + kTemporary.size());
    const bool whole = digits.size() == 16 &&
                       digits.find_first_not_of("0123456789abcdef") == std::string_view::npos;
    return whole ? file.substr(0, temporary) : "";
  }
  if (shared == std::string::npos ||
      file.find_first_not_of("0123456789-", shared + kShared.size()) != std::string::npos)
    return "";
  return file.substr(0, shared);
}

// Lock of one process at a time, held while files are removed or replaced.
class DirectoryLock {
 public:
  // `mode` applies if the file does not exist yet. Links are not followed, since that could create
  // or touch a file elsewhere.
  DirectoryLock(const std::string& path, unsigned mode)
      : fd_(::open(path.c_str(), O_RDWR | kFlags)) {
    if (fd_ < 0 && errno == ENOENT) {
      fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | kFlags, 0600);
      if (fd_ >= 0) ::fchmod(fd_, mode);
    }
    if (fd_ < 0) system_failed(path, "the lock file cannot be opened, or is a link");
    struct stat info = {};
    if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
      ::close(fd_);
      throw Error(ErrorKind::io, path, "", "a regular file to lock", "a device or pipe");
    }
    while (::flock(fd_, LOCK_EX) != 0) {
      if (errno == EINTR) continue;
      ::close(fd_);
      system_failed(path, "cannot be locked");
    }
  }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  ~DirectoryLock() { ::close(fd_); }

  int descriptor() const { return fd_; }

 private:
  static constexpr int kFlags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  int fd_;
};

// Returns the number after "budget ", which must consist of digits.
uint64_t budget_of(const std::string& path, const std::string& line) {
  constexpr std::string_view kBefore = "budget ";
  uint64_t bytes = 0;
  const char* const end = line.data() + line.size();
  const char* const first = line.data() + std::min(kBefore.size(), line.size());
  const auto read = std::from_chars(first, end, bytes);
  if (!line.starts_with(kBefore) || read.ec != std::errc() || read.ptr != end)
    throw Error(ErrorKind::format, path, "budget", "\"budget BYTES\"", printable(line, 60));
  return bytes;
}

class DirectoryStore : public StoreBackend {
 public:
  DirectoryStore(std::string path, StoreClock clock)
      : StoreBackend({.latency_seconds = 1e-4, .byte_seconds = 1e-9, .write_byte_seconds = 2e-9}),
        path_(std::move(path)),
        url_("dir:" + path_),
        clock_(std::move(clock)) {
    struct stat info = {};
    if (::stat((path_ + "/" + kStoreFile).c_str(), &info) != 0) {
      throw Error(ErrorKind::io, path_, "store", "",
                  fs::exists(path_) ? "the directory is no store; stet store init makes one"
                                    : "there is no store; stet store init makes one");
    }
    const std::string text = read_text_file(path_ + "/" + kStoreFile, kSmallFile);
    std::string_view lines = text;
    const std::string head = next_line(lines), budget = next_line(lines);
    if (head != kStoreHead)
      throw Error(ErrorKind::unsupported, path_ + "/" + kStoreFile, "first line", kStoreHead,
                  printable(head, 60));
    budget_ = budget_of(path_ + "/" + kStoreFile, budget);
    if (::stat(path_.c_str(), &info) == 0) mode_ = info.st_mode & 0666;
  }

  const std::string& url() const override { return url_; }

  int64_t now() override {
    if (clock_) return clock_();
    const std::string path = path_ + "/lock";
    const DirectoryLock lock(path, mode_);
    struct stat info = {};
    if (::futimens(lock.descriptor(), nullptr) != 0 || ::fstat(lock.descriptor(), &info) != 0)
      system_failed(path, "the time of the file cannot be set");
    return info.st_mtim.tv_sec;
  }

  std::vector<std::optional<StoredBytes>> read(RecordClass record_class,
                                               std::span<const Sha256> names) override {
    std::vector<std::optional<StoredBytes>> found(names.size());
    for (size_t i = 0; i < names.size(); ++i) {
      const std::string path = path_of(record_class, names[i]);
      if (inspects() ? !file_at(path) : !stamp(path)) continue;
      try {
        auto file = MappedFile::open(path);
        const std::span<const std::byte> bytes = file->bytes();
        found[i] = StoredBytes{bytes, file, file};
      } catch (const Error& e) {
        // An empty file is a damaged record. A missing one was evicted in the meantime.
        if (e.kind == ErrorKind::format) found[i] = StoredBytes{{}, nullptr, nullptr};
        if (e.kind == ErrorKind::io && fs::exists(path)) throw;
      }
    }
    return found;
  }

  std::vector<bool> touch(RecordClass record_class, std::span<const Sha256> names) override {
    std::optional<DirectoryLock> lock;
    // Without permission to write, the record is found but cannot be marked as used.
    if (::access(path_.c_str(), W_OK) == 0) lock.emplace(path_ + "/lock", mode_);
    std::vector<bool> there;
    for (const Sha256& name : names) there.push_back(stamp(path_of(record_class, name)));
    return there;
  }

  size_t write(RecordClass record_class, std::span<const NewRecord> records) override {
    std::optional<DirectoryLock> lock;
    uint64_t room = UINT64_MAX;
    if (record_class == RecordClass::blocks && budget_ > 0) {
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
      const std::string path = path_of(record_class, r.name);
      try {
        if (r.file == nullptr || !share(r.file->path(), bytes, path))
          write_file(path, {r.front, r.payload});
      } catch (const Error&) {
        if (record_class == RecordClass::blocks && is_directory(path))
          continue;  // as a missing block, it costs time only
        // A full disk takes no more blocks, but a state is small and may still fit.
        if (record_class == RecordClass::blocks && is_full(bytes)) break;
        throw;
      }
      stamp(path);
      ++kept;
    }
    return kept;
  }

  void list(RecordClass record_class, const std::function<void(const RecordInfo&)>& each) override {
    for (const std::string& file : files_in(folder_of(record_class))) {
      const auto name = hash_of_hex(file);
      const auto info = name ? file_at(folder_of(record_class) + "/" + file) : std::nullopt;
      if (info) each({*name, static_cast<uint64_t>(info->st_size), info->st_mtim.tv_sec});
    }
  }

  bool remove(RecordClass record_class, const Sha256& name, int64_t unused_since) override {
    const DirectoryLock lock(path_ + "/lock", mode_);
    const std::string path = path_of(record_class, name);
    const auto info = file_at(path);
    if (!info || info->st_mtim.tv_sec >= unused_since) return false;
    return ::unlink(path.c_str()) == 0;
  }

  std::vector<std::string> names() override {
    std::vector<std::string> found;
    for (std::string& file : files_in(path_ + "/names")) {
      if (is_store_name(file) && file_at(path_ + "/names/" + file))
        found.push_back(std::move(file));
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  std::optional<std::vector<std::byte>> read_name(const std::string& name) override {
    const std::string path = path_ + "/names/" + name;
    if (file_at(path)) return read_file(path, kSmallFile);
    const std::string store = path_ + "/" + kStoreFile;  // missing if it was unmounted
    if (!file_at(store)) system_failed(store, "the store cannot be reached");
    return std::nullopt;
  }

  bool replace_name(const std::string& name, const std::optional<std::vector<std::byte>>& expected,
                    const std::optional<std::vector<std::byte>>& next) override {
    const DirectoryLock lock(path_ + "/lock", mode_);
    if (read_name(name) != expected) return false;
    const std::string path = path_ + "/names/" + name;
    if (next) {
      write_file(path, {*next});
    } else if (expected && ::unlink(path.c_str()) != 0) {
      system_failed(path, "cannot be removed");
    }
    return true;
  }

  void lease(const std::string& holder, std::span<const Sha256> states, int64_t until) override {
    std::string line = std::to_string(until);
    for (const Sha256& id : states) line += " " + hex_of_hash(id);
    line += "\n";
    write_file(path_ + "/leases/" + holder, {std::as_bytes(std::span(line))});
  }

  void release(const std::string& holder) override {
    ::unlink((path_ + "/leases/" + holder).c_str());
  }

  std::vector<Sha256> leased() override {
    std::vector<Sha256> states;
    const int64_t time = now();
    for (const std::string& file : files_in(path_ + "/leases")) {
      if (!hash_of_hex(file)) continue;  // incompletely written
      const std::string path = path_ + "/leases/" + file;
      if (!file_at(path)) continue;
      try {
        const std::string text = read_text_file(path, kSmallFile);
        std::string_view words = text;
        const std::string first = next_word(words);
        int64_t until = 0;
        std::from_chars(first.data(), first.data() + first.size(), until);
        if (until <= time) {
          ::unlink(path.c_str());
          continue;
        }
        for (std::string id = next_word(words); !id.empty(); id = next_word(words)) {
          if (const auto hash = hash_of_hex(id)) states.push_back(*hash);
        }
      } catch (const Error&) {
        // The lease was released in the meantime.
      }
    }
    return states;
  }

  // Removes temporary files of killed writers, which have names of their own. Other files do not
  // belong to the store and stay.
  void tidy(int64_t before) override {
    for (const char* folder : kStoreFolders) {
      const bool names = folder == std::string_view("/names");
      for (const std::string& file : files_in(path_ + folder)) {
        const std::string path = path_ + folder + "/" + file, of = final_name_of(file);
        const auto info = file_at(path);
        const bool ours = names ? is_store_name(of) : hash_of_hex(of).has_value();
        if (ours && info && info->st_mtim.tv_sec < before) ::unlink(path.c_str());
      }
    }
  }

  std::vector<std::pair<std::string, std::string>> about() override {
    return {{"store", url_}, {"budget", budget_ == 0 ? "none" : std::to_string(budget_)}};
  }

 private:
  // Writes a file of the store. A link or pipe that others put in its place is replaced.
  void write_file(const std::string& path,
                  std::initializer_list<std::span<const std::byte>> parts) const {
    AtomicFile file(path, mode_, AtomicFile::Existing::replace);
    for (const std::span<const std::byte> part : parts) file.write(part);
    file.commit();
  }
  static bool is_directory(const std::string& path) {
    struct stat info = {};
    return ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  }
  // Adds a file of another directory without copying its bytes. Uses a reflink if the file system
  // has them, or else a hard link if owner and permissions are the same. Returns false and changes
  // nothing if neither works.
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
    ::unlink(aside.c_str());  // still there if both names were one file
    const int folder =
        done ? ::open(folder_of(RecordClass::blocks).c_str(), O_RDONLY | O_CLOEXEC) : -1;
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
  // Returns whether the file system lacks room for `bytes` more.
  bool is_full(uint64_t bytes) const {
    struct statvfs info = {};
    return ::statvfs(path_.c_str(), &info) == 0 && info.f_bavail * info.f_frsize < bytes + kSpare;
  }

  std::string folder_of(RecordClass record_class) const {
    return path_ + (record_class == RecordClass::blocks ? "/blocks" : "/states");
  }
  std::string path_of(RecordClass record_class, const Sha256& name) const {
    return folder_of(record_class) + "/" + hex_of_hash(name);
  }

  // Marks a file as used now. Returns false if there is none. Only a file's owner may set a chosen
  // time. Others with permission to write can only set the current time; without it the file stays
  // unmarked.
  bool stamp(const std::string& path) const {
    timespec times[2] = {};
    if (clock_) times[0].tv_sec = times[1].tv_sec = clock_();
    if (!file_at(path)) return false;
    if (::utimensat(AT_FDCWD, path.c_str(), clock_ ? times : nullptr, AT_SYMLINK_NOFOLLOW) == 0 ||
        (clock_ && errno == EPERM && touched(path)))
      return true;
    return errno != ENOENT && ::access(path.c_str(), F_OK) == 0;
  }
  static bool touched(const std::string& path) {
    return ::utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW) == 0;
  }

  static std::vector<std::string> files_in(const std::string& folder) {
    std::vector<std::string> files;
    std::error_code error;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
      files.push_back(at->path().filename().string());
    if (error)
      throw Error(ErrorKind::io, folder, "", "",
                  "the directory cannot be read: " + error.message());
    return files;
  }

  // Evicts the least recently used blocks until `wanted` more bytes fit the budget. Incomplete
  // files of other writers count. Returns the bytes that fit.
  uint64_t make_room(uint64_t wanted) {
    struct File {
      std::string path;
      uint64_t bytes;
      int64_t used;
    };
    std::vector<File> files;
    uint64_t total = 0;
    for (const std::string& file : files_in(path_ + "/blocks")) {
      const std::string path = path_ + "/blocks/" + file;
      const auto info = file_at(path);
      if (!info) continue;
      total += static_cast<uint64_t>(info->st_size);
      if (hash_of_hex(file))
        files.push_back({path, static_cast<uint64_t>(info->st_size), info->st_mtim.tv_sec});
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

std::unique_ptr<StoreBackend> open_directory_store(const std::string& path, StoreClock clock) {
  return std::make_unique<DirectoryStore>(path, std::move(clock));
}

}  // namespace stet
