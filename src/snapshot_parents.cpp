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

#include "src/snapshot_format.hpp"
#include "stet/error.hpp"
#include "stet/limits.hpp"
#include "stet/snapshot.hpp"

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

// The state digest in the header of a regular file; "" where there is none.
std::string state_of_file(int directory, const char* name) {
  struct stat info = {};
  if (::fstatat(directory, name, &info, 0) != 0 || !S_ISREG(info.st_mode)) return "";
  const int fd = ::openat(directory, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return "";
  std::byte header[128];
  const ssize_t size = ::pread(fd, header, sizeof header, 0);
  ::close(fd);
  const auto found = state_of_header({header, size < 0 ? 0 : static_cast<size_t>(size)});
  return found ? digest_text(*found) : "";
}

// A snapshot beside a delta that holds this state: a regular file, no link, of the delta's owner. Of others nothing is opened.
std::string file_with_state(const std::filesystem::path& path, const std::string& state) {
  struct stat delta = {}, info = {};
  if (::stat(path.c_str(), &delta) != 0) return "";
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  Directory directory(folder.string());
  int looked_at = 0;
  while (const dirent* entry = directory.next()) {
    if (!std::string_view(entry->d_name).ends_with(".stet")) continue;
    if (::fstatat(directory.descriptor(), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (!S_ISREG(info.st_mode) || info.st_uid != delta.st_uid || info.st_ino == delta.st_ino) continue;
    if (++looked_at > kMostLookedAt) return "";
    if (state_of_file(directory.descriptor(), entry->d_name) == state) return (folder / entry->d_name).string();
  }
  return "";
}

}  // namespace

// The direct parent: the file that is named, or the one of the name that it had, or any file beside it with that state.
std::shared_ptr<const Snapshot> Snapshot::find_parent(const std::string& path) const {
  std::string found = path;
  if (found.empty()) {
    const std::filesystem::path name = std::filesystem::path(meta_.parent_file).filename();
    const std::string beside = std::filesystem::path(path_).replace_filename(name).string();
    found = !name.empty() && state_of_file(AT_FDCWD, beside.c_str()) == meta_.parent ? beside : file_with_state(path_, meta_.parent);
  }
  const std::shared_ptr<const Snapshot> parent = found.empty() ? nullptr : std::make_shared<const Snapshot>(open(found));
  if (parent == nullptr || digest_text(parent->digests().state) != meta_.parent) {
    throw Error(ErrorKind::io, path_, "parent", "a snapshot of state " + meta_.parent + " beside it, or by --parent",
                parent == nullptr ? "none" : "one of " + digest_text(parent->digests().state));
  }
  if (!(parent->meta().kv == meta_.kv)) snapshot_damaged(path_, "parent", "keys and values of the same shape", "others");
  return parent;
}

Snapshot::Parents Snapshot::resolve_parents(const std::string& path) const {
  Parents parents;
  size_t meta_bytes = 0;
  std::string given = path;
  for (const Snapshot* s = this; s->meta().form == SnapshotForm::delta; s = parents.back().get()) {
    if (parents.size() == kMaxParents) snapshot_damaged(path_, "parent", "at most " + std::to_string(kMaxParents) + " deltas in a chain", "more");
    std::shared_ptr<const Snapshot> parent = s->find_parent(std::exchange(given, ""));
    const auto same = [&](const std::shared_ptr<const Snapshot>& p) { return p->is_file_of(*parent); };
    if (is_file_of(*parent) || std::any_of(parents.begin(), parents.end(), same)) {
      snapshot_damaged(s->path(), "parent", "a file that is no delta of this one", printable(parent->path()));
    }
    meta_bytes += parent->content("META").size();
    if (meta_bytes > kMaxParentsMetaBytes) {
      snapshot_damaged(path_, "parent", "a chain with META sections of at most " + std::to_string(kMaxParentsMetaBytes) + " bytes", "more");
    }
    parents.push_back(std::move(parent));
  }
  return parents;
}

bool Snapshot::is_file_of(const Snapshot& other) const {
  if (file_ == nullptr || other.file_ == nullptr) return false;
  return file_->opened().device == other.file_->opened().device && file_->opened().inode == other.file_->opened().inode;
}

bool Snapshot::is_file_at(const std::string& path) const {
  struct stat info = {};
  if (file_ == nullptr || ::stat(path.c_str(), &info) != 0) return false;
  return file_->opened().device == info.st_dev && file_->opened().inode == info.st_ino;
}

void Snapshot::check_not_needed(const std::string& path) const {
  const auto refuse = [&](const Snapshot& needed) {
    throw Error(ErrorKind::argument, path, "", "a file that the delta does not need", "its parent " + printable(needed.path()));
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

void Snapshot::find_parents(const std::string& path) {
  if (parents_.empty()) parents_ = resolve_parents(path);
}

Snapshot::Parents Snapshot::parents_or_find() const { return parents_.empty() ? resolve_parents("") : parents_; }

// From file to file, each of which must know the block by the same digests.
Snapshot::Place Snapshot::place(int64_t block, const Parents& parents) const {
  const Snapshot* at = this;
  for (size_t i = 0;; ++i) {
    const Extent& own = at->places_[static_cast<size_t>(block)];
    if (own.size > 0) return {at, own};
    if (visible(block) == 0) return {};
    if (at->meta_.form != SnapshotForm::delta || at->visible(block) == 0) {
      snapshot_damaged(at->path_, "KV block " + std::to_string(block), "one that is visible, as in " + printable(path_), "none");
    }
    const Snapshot& from = *parents[i];
    const std::span<const Digest> mine = block_digests(block);
    const bool there = block < blocks_of(from.meta().positions);
    const std::span<const Digest> theirs = there ? from.block_digests(block) : std::span<const Digest>();
    if (!std::ranges::equal(mine, theirs)) {
      snapshot_damaged(at->path_, "KV block " + std::to_string(block), "one that the parent has", "none");
    }
    at = &from;
  }
}

}  // namespace stet
