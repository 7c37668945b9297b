#include "src/snapshot/parents.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <string_view>
#include <utility>

#include "src/snapshot/file.hpp"
#include "stet/base/error.hpp"
#include "stet/base/limits.hpp"

namespace stet {
namespace {

constexpr int kMostCandidates = 4096;  // files in a delta's directory tried as a renamed parent

// Thrown for a chain beyond the limits, which no search for other files makes shorter.
class ChainTooLong : public Error {
 public:
  ChainTooLong(ErrorKind kind, const std::string& path, const std::string& limit)
      : Error(kind, path, "parent", limit,
              "more; make a delta in its middle full: stet convert FILE -o FILE") {}
};

// Throws unless a delta may have so many parents, with META sections of so many bytes together.
// Readers and writers of a chain both call it.
void check_chain(ErrorKind kind, const std::string& path, size_t parents, size_t meta_bytes) {
  if (parents > kMaxParents)
    throw ChainTooLong(kind, path, "at most " + std::to_string(kMaxParents) + " deltas in a chain");
  if (meta_bytes > kMaxParentsMetaBytes)
    throw ChainTooLong(
        kind, path,
        "a chain with META sections of at most " + std::to_string(kMaxParentsMetaBytes) + " bytes");
}

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

// Returns the id in the header of a regular file, or nothing if it is not a snapshot.
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

bool is_parent(const SnapshotFile& of, const Sha256& id) {
  return sha256_text(id) == of.meta.parent;
}

// Calls use(path) with the snapshots in a delta's directory that have the id of its parent, until
// it returns true. They are regular files, not links, that the delta's owner owns. Other files are
// not opened.
template <class Use>
void parents_beside(const SnapshotFile& of, Use use) {
  const std::filesystem::path path = of.path;
  struct stat delta = {}, info = {};
  if (::stat(path.c_str(), &delta) != 0) return;
  const std::filesystem::path folder =
      path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  Directory directory(folder.string());
  int candidates = 0;
  while (const dirent* entry = directory.next()) {
    if (!std::string_view(entry->d_name).ends_with(".stet")) continue;
    if (::fstatat(directory.descriptor(), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (!S_ISREG(info.st_mode) || info.st_uid != delta.st_uid || info.st_ino == delta.st_ino)
      continue;
    if (++candidates > kMostCandidates) return;
    const auto id = id_of_file(directory.descriptor(), entry->d_name);
    if (id && is_parent(of, *id) && use((folder / entry->d_name).string())) return;
  }
}

bool is_same_file(const SnapshotFile& a, const SnapshotFile& b) {
  return a.mapping != nullptr && b.mapping != nullptr &&
         a.mapping->opened().device == b.mapping->opened().device &&
         a.mapping->opened().inode == b.mapping->opened().inode;
}

[[noreturn]] void needs_parent(const SnapshotFile& of, const std::string& why) {
  throw Error(ErrorKind::io, of.path, "parent", "",
              "the delta needs the snapshot of state " + printable(of.meta.parent) + why);
}

void check_is_parent(const SnapshotFile& of, const SnapshotFile& parent) {
  if (!is_parent(of, parent.digests.id))
    needs_parent(of, "; the one named holds state " + sha256_text(parent.digests.id));
  if (!(parent.meta.kv == of.meta.kv))
    snapshot_damaged(of.path, "parent", "keys and values of the same shape", "others");
}

std::shared_ptr<const SnapshotFile> open_parent(const SnapshotFile& of, const std::string& path) {
  auto parent = open_file(path);
  check_is_parent(of, *parent);
  return parent;
}

// Ranks files of one state. A full file needs no other. A delta needs its parent, which may be
// missing. A delta of the same state may even be one of `of`. A recipe has no keys and values, and
// serves only if none are needed.
int rank_of(const SnapshotFile& parent, const SnapshotFile& of) {
  if (parent.meta.form == SnapshotForm::delta) return parent.meta.parent != of.meta.parent ? 1 : 2;
  return parent.meta.form == SnapshotForm::full ? 0 : 3;
}

// Chooses a parent from files that may be damaged or deltas of this one.
class ParentChoice {
 public:
  explicit ParentChoice(const SnapshotFile& of) : of_(of) {}

  // Considers a file. Returns true if no other can be better.
  template <class Check>
  bool consider(const std::string& path, Check check) {
    try {
      auto file = open_parent(of_, path);
      check(*file);
      if (best_ == nullptr || rank_of(*file, of_) < rank_of(*best_, of_)) best_ = std::move(file);
    } catch (const Error&) {
      if (fault_ == nullptr) fault_ = std::current_exception();
    }
    return best_ != nullptr && rank_of(*best_, of_) == 0;
  }
  bool has_keys_and_values() const {
    return best_ != nullptr && best_->meta.form != SnapshotForm::recipe;
  }
  // Throws the first fault if no file can be used.
  std::shared_ptr<const SnapshotFile> best() const {
    if (best_ == nullptr && fault_ != nullptr) std::rethrow_exception(fault_);
    if (best_ == nullptr) {
      needs_parent(of_, of_.mapping == nullptr
                            ? "; a delta in memory has to be opened with its parent"
                            : ", which is not beside it; name it with --parent");
    }
    return best_;
  }

 private:
  const SnapshotFile& of_;
  std::shared_ptr<const SnapshotFile> best_;
  std::exception_ptr fault_;
};

}  // namespace

SnapshotChain::SnapshotChain(const Snapshot& snapshot) : file_(snapshot.file()) {
  for (const auto& parent : snapshot.parents()) parents_.push_back(parent->file());
  if (parents_.empty()) *this = SnapshotChain(file_, std::nullopt);
}

SnapshotChain::SnapshotChain(std::shared_ptr<const SnapshotFile> file,
                             const std::optional<std::string>& path)
    : file_(std::move(file)) {
  std::optional<std::string> given = path;
  for (const SnapshotFile* f = file_.get(); f->meta.form == SnapshotForm::delta;
       f = parents_.back().get()) {
    check_chain(ErrorKind::format, file_->path, parents_.size() + 1, meta_bytes_);
    add(given ? open_parent(*f, *std::exchange(given, std::nullopt)) : find_parent(*f), *f);
  }
}

SnapshotChain::SnapshotChain(std::shared_ptr<const SnapshotFile> file, const Snapshot& parent)
    : file_(std::move(file)) {
  check_is_parent(*file_, *parent.file());
  add(parent.file(), *file_);
  const SnapshotChain further(parent);
  for (const auto& next : further.parents_) {
    const std::shared_ptr<const SnapshotFile> of = parents_.back();
    add(next, *of);
  }
}

// Returns the direct parent: the file with the recorded name, or else the best one of its state in
// the delta's directory. The name of a delta in memory says nothing about a directory.
std::shared_ptr<const SnapshotFile> SnapshotChain::find_parent(const SnapshotFile& of) const {
  ParentChoice choice(of);
  if (of.mapping == nullptr) return choice.best();
  const auto check = [&](const SnapshotFile& parent) { check_is_new(parent, of); };
  const std::filesystem::path name = std::filesystem::path(of.meta.parent_file).filename();
  const std::string beside = std::filesystem::path(of.path).replace_filename(name).string();
  const auto id = name.empty() ? std::nullopt : id_of_file(AT_FDCWD, beside.c_str());
  if (id && is_parent(of, *id)) choice.consider(beside, check);
  if (!choice.has_keys_and_values())
    parents_beside(of, [&](const std::string& path) { return choice.consider(path, check); });
  return choice.best();
}

// Throws if the parent is in the chain already.
void SnapshotChain::check_is_new(const SnapshotFile& parent, const SnapshotFile& of) const {
  const auto same = [&](const auto& file) { return is_same_file(*file, parent); };
  if (same(file_) || std::ranges::any_of(parents_, same)) {
    snapshot_damaged(of.path, "parent", "a file that is no delta of this one",
                     printable(parent.path));
  }
}

void SnapshotChain::add(std::shared_ptr<const SnapshotFile> parent, const SnapshotFile& of) {
  check_is_new(*parent, of);
  meta_bytes_ += parent->content("META").size();
  check_chain(ErrorKind::format, file_->path, parents_.size() + 1, meta_bytes_);
  parents_.push_back(std::move(parent));
}

const SnapshotFile* SnapshotChain::holder(int64_t block) const {
  const SnapshotFile* at = file_.get();
  for (size_t i = 0;; ++i) {
    if (at->extent(block).there) return at;
    const auto visible = [&](const SnapshotFile& f) {
      return f.visible[static_cast<size_t>(block)] != 0;
    };
    if (!visible(*file_)) return nullptr;
    if (at->meta.form != SnapshotForm::delta || !visible(*at)) {
      snapshot_damaged(at->path, "KV block " + std::to_string(block), "",
                       "it is missing, and visible in " + printable(file_->path));
    }
    const SnapshotFile& from = *parents_[i];
    const bool there = block < blocks_of(from.meta.positions);
    if (!std::ranges::equal(file_->block_digests(block),
                            there ? from.block_digests(block) : std::span<const Digest>())) {
      snapshot_damaged(at->path, "KV block " + std::to_string(block), "",
                       "the parent has no such block");
    }
    at = &from;
  }
}

// ------------------------------------------------- parents of a snapshot

namespace {

[[noreturn]] void refuse_to_replace(const std::string& path, const Snapshot& needed) {
  throw Error(ErrorKind::argument, path, "", "",
              "the delta needs its parent " + printable(needed.path()) + "; save to another file");
}

}  // namespace

void Snapshot::check_is_delta() const {
  if (meta().form != SnapshotForm::delta)
    throw Error(ErrorKind::argument, path(), "parent", "none, since the snapshot is not a delta",
                "one");
}

void Snapshot::find_parents(const std::optional<std::string>& path) {
  if (path) check_is_delta();
  if (parents_.empty()) use_parents(SnapshotChain(file_, path));
}

void Snapshot::set_parent(const Snapshot& parent) {
  check_is_delta();
  use_parents(SnapshotChain(file_, parent));
}

void Snapshot::use_parents(const SnapshotChain& chain) {
  parents_.clear();
  for (const auto& parent : chain.parents())
    parents_.push_back(std::shared_ptr<const Snapshot>(new Snapshot(parent)));
}

bool Snapshot::is_file_at(const std::string& path) const {
  struct stat info = {};
  if (file_->mapping == nullptr || ::stat(path.c_str(), &info) != 0) return false;
  const FileStamp& opened = file_->mapping->opened();
  return opened.device == info.st_dev && opened.inode == info.st_ino;
}

void Snapshot::check_parent(const KvShape& shape, const std::string& to) const {
  if (meta().form == SnapshotForm::recipe) {
    throw Error(ErrorKind::argument, path(), "parent", "",
                "a recipe has no keys and values, so it cannot be the parent of a delta");
  }
  if (!(meta().kv == shape)) {
    throw Error(ErrorKind::mismatch, path(), "parent",
                "a snapshot with keys and values of the same shape", "another");
  }
  Snapshot whole = *this;
  try {
    whole.find_parents();
  } catch (const ChainTooLong&) {
    throw;
  } catch (const Error&) {
    // A chain with a missing file can be completed later, and its length is not known before.
  }
  size_t meta_bytes = file_->content("META").size();
  for (const auto& parent : whole.parents_) meta_bytes += parent->file_->content("META").size();
  check_chain(ErrorKind::capacity, to, whole.parents_.size() + 1, meta_bytes);
  if (!to.empty()) whole.check_may_overwrite(to);
}

void Snapshot::check_may_overwrite(const std::string& path) const {
  if (is_file_at(path)) refuse_to_replace(path, *this);
  check_keeps_parents(path);
}

void Snapshot::check_keeps_parents(const std::string& path) const {
  if (meta().form != SnapshotForm::delta) return;
  Snapshot whole = *this;
  try {
    whole.find_parents();
  } catch (const Error&) {
    return;  // a parent that cannot be found is not at `path` either
  }
  for (const auto& parent : whole.parents_) {
    if (parent->is_file_at(path)) refuse_to_replace(path, *parent);
  }
}

}  // namespace stet
