#include "tools/serve/state_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <optional>
#include <span>
#include <system_error>
#include <thread>

#include "stet/base/error.hpp"
#include "stet/files/file.hpp"
#include "tools/command/command.hpp"

namespace stet::serve {
namespace {

namespace fs = std::filesystem;

constexpr char kMark[] = "/stet-states", kMarkText[] = "stet states 1";
constexpr size_t kSecretBytes = 32, kHandleDigits = 32, kTemporaryDigits = 16;
constexpr size_t kMostExpired = 100000;  // lines
constexpr std::string_view kTemporary = ".tmp-";

[[noreturn]] void failed(const std::string& path, const std::string& expected, int error) {
  throw Error(ErrorKind::io, path, "", expected, std::generic_category().message(error));
}

bool all_hex(std::string_view text, size_t digits) {
  return text.size() == digits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Returns the names in a directory, sorted.
std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename().string());
  if (error) failed(directory, "a directory that can be read", error.value());
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<struct stat> status_of(const std::string& path) {
  struct stat info = {};
  if (::lstat(path.c_str(), &info) != 0) return std::nullopt;
  return info;
}

// Links are followed.
bool is_file_or_link(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

bool is_file(const std::string& path, int64_t size = -1) {
  const auto info = status_of(path);
  return info && S_ISREG(info->st_mode) && (size < 0 || info->st_size == size);
}

// Returns "st_ID" for "st_ID.json" with the ending ".json"; "" for other endings.
std::string_view id_before(std::string_view name, std::string_view ending) {
  if (!name.ends_with(ending)) return "";
  const std::string_view id = name.substr(0, name.size() - ending.size());
  return is_state_id(id) ? id : "";
}

// Returns true for a temporary file of AtomicFile for one of the server's own files.
bool is_own_temporary(std::string_view name) {
  const size_t mark = name.find(kTemporary);
  if (mark == std::string_view::npos ||
      !all_hex(name.substr(mark + kTemporary.size()), kTemporaryDigits))
    return false;
  const std::string_view of = name.substr(0, mark);
  if (of == "secret" || of == "expired" || of == kMark + 1) return true;
  for (const char* ending : {".json", ".recipe", ".stet"}) {
    if (!id_before(of, ending).empty()) return true;
  }
  return false;
}

// Makes a directory and its parents. Returns false if it existed.
bool make_directory(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) == 0) return false;
  const fs::path above = fs::path(path).parent_path();
  if (!above.empty()) {
    std::error_code error;
    fs::create_directories(above, error);
    if (error) failed(above.string(), "a directory that can be made", error.value());
  }
  if (::mkdir(path.c_str(), 0700) != 0) {
    if (errno == EEXIST) return false;
    failed(path, "a directory that can be made", errno);
  }
  const std::string parent = above.empty() ? "." : above.string();
  const int fd = ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0) {
    ::fsync(fd);
    ::close(fd);
  }
  return true;
}

}  // namespace

std::string random_secret() {
  std::string secret(kSecretBytes, '\0');
  if (::getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size()))
    throw Error(ErrorKind::io, "", "random bytes", "32 of the system", "fewer");
  return secret;
}

bool is_state_id(std::string_view name) {
  return name.starts_with("st_") && all_hex(name.substr(3), kHandleDigits);
}

StateDirectory::StateDirectory(const std::string& path, double patience) : path_(path) {
  while (path_.size() > 1 && path_.ends_with('/')) path_.pop_back();
  make_directory(path_);
  check_owner();
  check_content();
  try {
    lock(patience);
    // Checked under the lock, when no other server can change it.
    if (!is_marked()) take(check_content());
    read_secret();
  } catch (...) {
    unlock();
    throw;
  }
}

StateDirectory::~StateDirectory() { unlock(); }

void StateDirectory::unlock() {
  for (int* const fd : {&lock_, &directory_lock_}) {
    if (*fd >= 0) ::close(*fd);
    *fd = -1;
  }
}

// Throws if other users may write to the directory: they could replace the server's files.
void StateDirectory::check_owner() const {
  struct stat info = {};
  if (::stat(path_.c_str(), &info) != 0) failed(path_, "a directory", errno);
  if (!S_ISDIR(info.st_mode))
    throw Error(ErrorKind::io, path_, "--state-dir", "a directory", "a file");
  if (info.st_uid != ::geteuid())
    throw Error(ErrorKind::io, path_, "owner",
                fmt::format("a directory of the user who runs the server, {}", ::geteuid()),
                std::to_string(info.st_uid));
  if ((info.st_mode & 022) != 0)
    throw Error(ErrorKind::io, path_, "permissions",
                "a directory that nobody else may write to (chmod go-w)",
                fmt::format("{:o}", info.st_mode & 07777));
}

bool StateDirectory::is_marked() const {
  if (!status_of(path_ + kMark)) return false;
  const std::string text = read_text_file(path_ + kMark, 4096),
                    first = text.substr(0, text.find('\n'));
  if (first != kMarkText)
    throw Error(ErrorKind::unsupported, path_ + kMark, "first line", kMarkText,
                printable(first, 60));
  return true;
}

// Throws for a directory that may not belong to a server. Returns true if it has no mark but the
// files of an older server.
bool StateDirectory::check_content() const {
  if (is_marked()) return false;
  const bool older = is_file(path_ + "/secret", kSecretBytes);
  for (const std::string& name : names_in(path_)) {
    const bool leftover = name.find(kTemporary) != std::string::npos || name == "lost+found" ||
                          (name == "lock" && is_file(path_ + "/lock", 0));
    const bool known =
        older && (name == "secret" || name.ends_with(".stet") || !id_before(name, ".json").empty());
    if (leftover || known) continue;
    throw Error(ErrorKind::io, path_, "--state-dir",
                "a new or empty directory, or one in which a server has kept states",
                "one with other files, as " + printable(name, 60));
  }
  return older;
}

// Returns the descriptor of the lock file, locked, or -1 if another process holds the lock.
int StateDirectory::try_lock() const {
  const std::string path = path_ + "/lock";
  for (;;) {
    const int fd =
        ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (fd < 0) failed(path, "a file to lock, and no link", errno);
    struct stat opened = {}, named = {};
    const bool regular = ::fstat(fd, &opened) == 0 && S_ISREG(opened.st_mode);
    const int error = !regular ? EINVAL : ::flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    // Another process may have removed the file between the two calls.
    if (error == 0 && ::lstat(path.c_str(), &named) == 0 && named.st_ino == opened.st_ino)
      return fd;
    ::close(fd);
    if (error == EWOULDBLOCK) return -1;
    if (error != 0 && error != EINTR)
      failed(path, regular ? "a file system with locks" : "a regular file to lock", error);
  }
}

// Locks the directory too, because a user may remove the lock file of a running server. Returns
// false if another process holds that lock. Not every file system has locks of directories.
bool StateDirectory::lock_directory() {
  directory_lock_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return directory_lock_ < 0 || ::flock(directory_lock_, LOCK_EX | LOCK_NB) == 0 ||
         errno != EWOULDBLOCK;
}

// Takes both locks. Returns false if another process holds one.
bool StateDirectory::take_locks() {
  if (lock_directory() && (lock_ = try_lock()) >= 0) return true;
  unlock();
  return false;
}

// Waits for the lock, since a server that ends needs some time to save its states.
void StateDirectory::lock(double patience) {
  const double start = tool::seconds();
  while (!take_locks()) {
    if (tool::seconds() - start > patience)
      throw Error(ErrorKind::io, path_, "lock", "a directory that no other server uses",
                  fmt::format("one that another server still used after {:g} s", patience));
    if (tool::seconds() - start < 0.05)
      tool::say("{}: waiting for the server that uses it to end\n", printable(path_));
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
  }
}

void StateDirectory::take(bool adopted) {
  if (adopted) {
    tool::say("{}: adopted, since an older server kept its states here\n", printable(path_));
  } else {
    const std::string secret = random_secret();
    write("", "secret", secret);
  }
  write("", kMark + 1, std::string(kMarkText) + "\n");
}

// Reads or makes the secret. With the same secret, handles outlive the server.
void StateDirectory::read_secret() {
  const std::string path = path_ + "/secret";
  if (!status_of(path)) {
    tool::say("{}: gone: a new one is made, and states that were known keep their ids\n",
              printable(path));
    write("", "secret", random_secret());
  }
  secret_ = read_text_file(path, 2 * kSecretBytes);
  if (secret_.size() != kSecretBytes)
    throw Error(ErrorKind::format, path, "secret", "32 bytes", std::to_string(secret_.size()));
}

std::string StateDirectory::file(std::string_view id, std::string_view ending) const {
  return fmt::format("{}/{}{}", path_, id, ending);
}

StateDirectory::Content StateDirectory::content() const {
  Content c;
  const std::vector<std::string> names = names_in(path_);
  const auto there = [&](const std::string& name) {
    return std::binary_search(names.begin(), names.end(), name);
  };
  for (const std::string& name : names) {
    if (const auto id = id_before(name, ".json"); !id.empty()) {
      const auto info = status_of(path_ + "/" + name);
      if (info && S_ISREG(info->st_mode))
        c.described.push_back({std::string(id), info->st_mtim.tv_sec});
    } else if (const auto gone = id_before(name, ".gone"); !gone.empty()) {
      if (is_file(path_ + "/" + name)) c.gone.emplace_back(gone);
    } else if (const auto tokens = id_before(name, ".recipe"); !tokens.empty()) {
      const bool known = has(tokens, ".json") || has(tokens, ".gone");
      if (!known && is_file(path_ + "/" + name)) c.undescribed.emplace_back(tokens);
    } else if (name.ends_with(".stet")) {
      const std::string front = name.substr(0, name.size() - 5);
      if (!is_state_id(front) || (!there(front + ".json") && !there(front + ".gone")))
        c.strange.push_back(name);
    }
  }
  return c;
}

// Removes files left by a crash. A writer holds a lock on its temporary file.
void StateDirectory::sweep() const {
  for (const std::string& name : names_in(path_)) {
    const std::string path = path_ + "/" + name;
    if (!is_own_temporary(name) || !is_file(path)) continue;
    const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) continue;
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) ::unlink(path.c_str());
    ::close(fd);
  }
}

bool StateDirectory::has(std::string_view id, std::string_view ending) const {
  return is_file_or_link(file(id, ending));
}

std::string StateDirectory::place_of(std::string_view id, std::string_view ending) const {
  const std::string path = file(id, ending);
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode)) return path;
  std::string aside = path + ".aside";
  for (int i = 2; status_of(aside); ++i) aside = fmt::format("{}.aside-{}", path, i);
  if (::rename(path.c_str(), aside.c_str()) != 0 && errno != ENOENT)
    failed(path, "a file, or something that can be moved aside", errno);
  tool::say("{}: no file, so it was moved to {}\n", printable(path), printable(aside));
  return path;
}

void StateDirectory::write(std::string_view id, std::string_view ending,
                           std::string_view bytes) const {
  AtomicFile out(place_of(id, ending), 0600);
  out.write(std::as_bytes(std::span(bytes.data(), bytes.size())));
  out.commit();
}

void StateDirectory::rename(std::string_view id, std::string_view from, std::string_view to) const {
  const std::string old = place_of(id, from);
  if (::rename(old.c_str(), place_of(id, to).c_str()) != 0 && errno != ENOENT)
    failed(old, "a file that can be renamed", errno);
}

void StateDirectory::remove(std::string_view id, std::string_view ending) const {
  if (has(id, ending) && ::unlink(file(id, ending).c_str()) != 0 && errno != ENOENT)
    failed(file(id, ending), "a file that can be removed", errno);
}

void StateDirectory::sync() const {
  const int fd = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) failed(path_, "a directory that can be opened", errno);
  const int error = ::fsync(fd) == 0 || errno == EINVAL ? 0 : errno;
  ::close(fd);
  if (error != 0) failed(path_, "names that reach the disk", error);
}

void StateDirectory::touch(std::string_view id, int64_t seconds) const {
  timespec times[2] = {};
  times[0].tv_sec = times[1].tv_sec = seconds;
  ::utimensat(AT_FDCWD, file(id, ".json").c_str(), times, AT_SYMLINK_NOFOLLOW);
}

std::vector<std::string> StateDirectory::expired() const {
  if (!is_file(path_ + "/expired")) return {};
  const std::string text = read_text_file(path_ + "/expired", size_t{1} << 28);
  std::vector<std::string> lines;
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
    lines.push_back(text.substr(at, end - at));
  if (lines.size() <= kMostExpired) return lines;
  lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(kMostExpired / 2));
  std::string kept;
  for (const std::string& line : lines) kept += line + "\n";
  write("", "expired", kept);
  return lines;
}

// Appends without a sync, since a line may be lost. A pipe must not block the server.
void StateDirectory::add_expired(const std::string& line) const {
  constexpr int kFlags = O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const std::string path = path_ + "/expired", text = line + "\n";
  const int fd = is_file(path) || !status_of(path) ? ::open(path.c_str(), kFlags, 0600) : -1;
  if (fd < 0 || ::write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    tool::say("{}: expected a file that can be written; {} is not noted there\n", printable(path),
              printable(line, 80));
  if (fd >= 0) ::close(fd);
}

}  // namespace stet::serve
