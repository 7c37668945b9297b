// The parents of a delta: which files they are, and where each block is.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "src/snapshot/format.hpp"
#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"
#include "stet/snapshot/snapshot.hpp"

namespace stet {
namespace {

constexpr int kMostLookedAt = 4096;  // files beside a delta, when its parent has another name

class Directory {
 public:
  explicit Directory(const std::string& path) : stream_(::opendir(path.c_str())) {}
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  ~Directory() {
    if (stream_ != nullptr) ::closedir(stream_);
  }
  const dirent* next() { return stream_ == nullptr ? nullptr : ::readdir(stream_); }
  int descriptor() const { return ::dirfd(stream_); }

 private:
  DIR* stream_;
};

// The id in the header of a regular file; nothing where it is no snapshot.
std::optional<Sha256> id_of_file(int directory, const char* name) {
  struct stat info = {};
  if (::fstatat(directory, name, &info, 0) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  const int fd = ::openat(directory, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return std::nullopt;
  std::byte header[kHeaderBytes];
  const ssize_t size = ::pread(fd, header, sizeof header, 0);
  ::close(fd);
  return id_in_header({header, size < 0 ? 0 : static_cast<size_t>(size)});
}

// A snapshot beside a delta that is its parent: a regular file, no link, of the delta's owner. Of
// others nothing is opened.
template <class IsParent>
std::string parent_beside(const std::filesystem::path& path, IsParent is_parent) {
  struct stat delta = {}, info = {};
  if (::stat(path.c_str(), &delta) != 0) return "";
  const std::filesystem::path folder =
      path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  Directory directory(folder.string());
  int looked_at = 0;
  while (const dirent* entry = directory.next()) {
    if (!std::string_view(entry->d_name).ends_with(".stet")) continue;
    if (::fstatat(directory.descriptor(), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (!S_ISREG(info.st_mode) || info.st_uid != delta.st_uid || info.st_ino == delta.st_ino)
      continue;
    if (++looked_at > kMostLookedAt) return "";
    const auto id = id_of_file(directory.descriptor(), entry->d_name);
    if (id && is_parent(*id)) return (folder / entry->d_name).string();
  }
  return "";
}

}  // namespace

bool Snapshot::is_parent(const Sha256& id) const { return sha256_text(id) == meta_.parent; }

// The direct parent: the file that is named, or the one of the name that it had, or any file beside
// it with that state.
std::shared_ptr<const Snapshot> Snapshot::find_parent(
    const std::optional<std::string>& path) const {
  std::string found = path.value_or("");
  if (!path) {
    const std::filesystem::path name = std::filesystem::path(meta_.parent_file).filename();
    const std::string beside = std::filesystem::path(path_).replace_filename(name).string();
    const auto id = name.empty() ? std::nullopt : id_of_file(AT_FDCWD, beside.c_str());
    found = id && is_parent(*id)
                ? beside
                : parent_beside(path_, [&](const Sha256& other) { return is_parent(other); });
  }
  const std::shared_ptr<const Snapshot> parent =
      found.empty() ? nullptr : std::make_shared<const Snapshot>(open(found));
  if (parent == nullptr || !is_parent(parent->digests().id)) {
    throw Error(ErrorKind::io, path_, "parent",
                "a snapshot of state " + printable(meta_.parent) + " beside it, or by --parent",
                parent == nullptr ? "none" : "one of " + parent->state_name());
  }
  if (!(parent->meta().kv == meta_.kv))
    snapshot_damaged(path_, "parent", "keys and values of the same shape", "others");
  return parent;
}

Snapshot::Parents Snapshot::resolve_parents(const std::optional<std::string>& path) const {
  Parents parents;
  size_t meta_bytes = 0;
  std::optional<std::string> given = path;
  for (const Snapshot* s = this; s->meta().form == SnapshotForm::delta; s = parents.back().get()) {
    if (parents.size() == kMaxParents)
      snapshot_damaged(path_, "parent",
                       "at most " + std::to_string(kMaxParents) + " deltas in a chain", "more");
    std::shared_ptr<const Snapshot> parent = s->find_parent(std::exchange(given, std::nullopt));
    const auto same = [&](const std::shared_ptr<const Snapshot>& p) {
      return p->is_file_of(*parent);
    };
    if (is_file_of(*parent) || std::any_of(parents.begin(), parents.end(), same)) {
      snapshot_damaged(s->path(), "parent", "a file that is no delta of this one",
                       printable(parent->path()));
    }
    meta_bytes += parent->content("META").size();
    if (meta_bytes > kMaxParentsMetaBytes) {
      snapshot_damaged(path_, "parent",
                       "a chain with META sections of at most " +
                           std::to_string(kMaxParentsMetaBytes) + " bytes",
                       "more");
    }
    parents.push_back(std::move(parent));
  }
  return parents;
}

bool Snapshot::is_file_of(const Snapshot& other) const {
  if (file_ == nullptr || other.file_ == nullptr) return false;
  return file_->opened().device == other.file_->opened().device &&
         file_->opened().inode == other.file_->opened().inode;
}

bool Snapshot::is_file_at(const std::string& path) const {
  struct stat info = {};
  if (file_ == nullptr || ::stat(path.c_str(), &info) != 0) return false;
  return file_->opened().device == info.st_dev && file_->opened().inode == info.st_ino;
}

void Snapshot::check_not_needed(const std::string& path) const {
  const auto refuse = [&](const Snapshot& needed) {
    throw Error(ErrorKind::argument, path, "", "a file that the delta does not need",
                "its parent " + printable(needed.path()));
  };
  if (is_file_at(path)) refuse(*this);
  Parents parents;
  try {
    parents = parents_or_find();
  } catch (const Error&) {
    return;  // what cannot be found is not at `path` either
  }
  for (const auto& parent : parents) {
    if (parent->is_file_at(path)) refuse(*parent);
  }
}

void Snapshot::find_parents(const std::optional<std::string>& path) {
  if (parents_.empty()) parents_ = resolve_parents(path);
}

Snapshot::Parents Snapshot::parents_or_find() const {
  return parents_.empty() ? resolve_parents(std::nullopt) : parents_;
}

// From file to file, each of which must know the block by the same digests.
Snapshot::BlockLocation Snapshot::locate(int64_t block, const Parents& parents) const {
  const Snapshot* at = this;
  for (size_t i = 0;; ++i) {
    const Extent& own = at->extents_[static_cast<size_t>(block)];
    if (own.there) return {at, own};
    if (visible(block) == 0) return {};
    if (at->meta_.form != SnapshotForm::delta || at->visible(block) == 0) {
      snapshot_damaged(at->path_, "KV block " + std::to_string(block),
                       "one that is visible, as in " + printable(path_), "none");
    }
    const Snapshot& from = *parents[i];
    const std::span<const Digest> mine = block_digests(block);
    const bool there = block < blocks_of(from.meta().positions);
    const std::span<const Digest> theirs =
        there ? from.block_digests(block) : std::span<const Digest>();
    if (!std::ranges::equal(mine, theirs)) {
      snapshot_damaged(at->path_, "KV block " + std::to_string(block), "one that the parent has",
                       "none");
    }
    at = &from;
  }
}

}  // namespace stet
