#include "tools/chat/save_targets.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "stet/base/error.hpp"
#include "tools/command/command.hpp"
#include "tools/store/store.hpp"

namespace stet::tool {
namespace {

std::string canonical_path(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path full = std::filesystem::weakly_canonical(path, ignored);
  return full.empty() ? path : full.string();
}

// Returns "talk-1.stet" for "talk.stet" and 1.
std::string beside(const std::string& path, int number) {
  const std::filesystem::path whole(path);
  return (whole.parent_path() /
          fmt::format("{}-{}{}", whole.stem().string(), number, whole.extension().string()))
      .string();
}

}  // namespace

// Keeps other chats from replacing a file while this object lives. It locks an existing file, or
// makes an empty one.
class SaveTargets::Hold {
 public:
  Hold() = default;
  ~Hold() {
    if (fd_ >= 0) ::close(fd_);
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  // Returns false if the file is not in the state `known`. A file that cannot be opened or made is
  // left to the later write, whose error gives the reason.
  bool take(const std::string& path, const std::optional<Stamp>& known, unsigned mode) {
    lock(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    if (const auto there = stamp_of(path)) return there == known;
    std::error_code ignored;
    if (fd_ >= 0 || std::filesystem::is_symlink(path, ignored)) return true;
    return make(path, mode) || errno != EEXIST;
  }
  bool make(const std::string& path, unsigned mode) {
    lock(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    if (fd_ < 0) return false;
    made_ = path;
    if (is_at(path)) return true;
    errno = EEXIST;  // another chat has locked it first, and replaced it
    return false;
  }
  // Removes the file that this object made, unless it was replaced.
  void undo() const {
    if (!made_.empty() && is_at(made_)) ::unlink(made_.c_str());
  }

 private:
  void lock(int fd) {
    const int error = errno;
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
    while (fd_ >= 0 && ::flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
    errno = error;
  }
  bool is_at(const std::string& path) const {
    struct stat ours = {}, there = {};
    return ::fstat(fd_, &ours) == 0 && ::stat(path.c_str(), &there) == 0 &&
           ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
  }

  int fd_ = -1;
  std::string made_;
};

std::optional<SaveTargets::Stamp> SaveTargets::stamp_of(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0 || info.st_size == 0) return std::nullopt;
  return Stamp{info.st_dev, info.st_ino, info.st_size,
               info.st_mtim.tv_sec * int64_t{1000000000} + info.st_mtim.tv_nsec};
}

void SaveTargets::know(const std::string& path) {
  if (!is_in_store(path)) known_[canonical_path(path)] = stamp_of(path);
}

void SaveTargets::check(const std::string& path, const std::string& option,
                        const std::string& instead) const {
  const std::optional<Stamp> there = is_in_store(path) ? std::nullopt : stamp_of(path);
  if (!there || known_.contains(canonical_path(path))) return;
  const bool known = std::ranges::any_of(known_, [&](const auto& entry) {
    return entry.second && entry.second->device == there->device &&
           entry.second->inode == there->inode;
  });
  if (known) return;  // under another name
  throw std::runtime_error(
      fmt::format("{}: {} exists already: {}", option, printable(path), instead));
}

std::string SaveTargets::save(const std::string& path, unsigned mode,
                              const std::function<void(const std::string&)>& write) {
  if (is_in_store(path)) {
    write(path);  // a store keeps the earlier states of a name
    return path;
  }
  const auto known = known_.find(canonical_path(path));
  Hold hold;
  std::string target = path;
  if (!hold.take(path, known == known_.end() ? std::nullopt : known->second, mode)) {
    int number = 1;
    while (!hold.make(target = beside(path, number), mode) && errno == EEXIST) ++number;
  }
  try {
    write(target);
  } catch (...) {
    hold.undo();
    throw;
  }
  know(target);
  return target;
}

}  // namespace stet::tool
