#include "stet/checkpoint/cache.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <system_error>

#include "src/files/open_file.hpp"
#include "stet/base/bytes.hpp"
#include "stet/base/digest.hpp"
#include "stet/base/error.hpp"
#include "stet/base/sha256.hpp"
#include "stet/checkpoint/checkpoint.hpp"
#include "stet/checkpoint/packed.hpp"
#include "stet/model/model.hpp"
#include "stet/text/tokenizer.hpp"
#include "stet/threads/team.hpp"

namespace stet {
namespace {

namespace fs = std::filesystem;

constexpr size_t kDigestedAtOnce = size_t{64} << 20, kSmall = 4096;
constexpr const char* kVersion = "stet cache 1\n";

// Serves the packed files of a cache entry under the path of the original checkpoint.
class CachedSource : public FileSource {
 public:
  CachedSource(const FileSource& original, const std::string& entry)
      : FileSource(original.path(), entry + "/"), entry_(directory_source(entry)) {}

  bool has(const std::string& name) const override { return entry_->has(name); }
  std::shared_ptr<const FileBytes> open(const std::string& name) const override {
    return entry_->open(name);
  }
  std::string read(const std::string& name, size_t limit) const override {
    return entry_->read(name, limit);
  }
  void check_own(const std::string& name) const override { entry_->check_own(name); }

 private:
  std::shared_ptr<const FileSource> entry_;
};

// Holds a lock file exclusively among processes.
class Lock {
 public:
  explicit Lock(const std::string& path) {
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    int status = fd_ < 0 ? -1 : ::flock(fd_, LOCK_EX);
    while (fd_ >= 0 && status != 0 && errno == EINTR) status = ::flock(fd_, LOCK_EX);
    if (status == 0) return;
    const std::string reason = std::generic_category().message(errno);
    if (fd_ >= 0) ::close(fd_);
    throw Error(ErrorKind::io, path, "", "", "the cache cannot be locked: " + reason);
  }
  ~Lock() { ::close(fd_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  int fd_;
};

void put(ByteWriter& w, const std::string& text) {
  w.u64(text.size());
  w.text(text);
}

std::string hex_of(const ByteWriter& w) {
  return sha256_text(sha256_of(w.data())).substr(std::string("sha256:").size());
}

std::string stamp_text(const FileStamp& s) {
  return std::to_string(s.device) + " " + std::to_string(s.inode) + " " + std::to_string(s.size) +
         " " + std::to_string(s.modified) + " " + std::to_string(s.changed);
}

void make_directory(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error)
    throw Error(ErrorKind::io, path, "", "",
                "the directory of the cache cannot be made: " + error.message());
}

void write_small(const std::string& path, const std::string& text) {
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

// The source files and settings that an entry is made from.
class Origin {
 public:
  Origin(const FileSource& source, Contract contract, int threads)
      : contract_(contract_name(contract)), threads_(threads) {
    std::vector<std::string> names = Model::files_of(source);
    const std::vector<std::string> text = Tokenizer::files_of(source);
    names.insert(names.end(), text.begin(), text.end());
    std::set<std::string> seen;
    for (const std::string& name : names) {
      const auto file = open_file(source, name);
      if (seen.insert(file->path()).second) files_.push_back(file);
    }
  }

  // Hashes the stamps that the system gives for files, and the content of sources that are not
  // files.
  std::string stamps() const {
    ByteWriter w = start();
    for (const auto& file : files_)
      put(w, file->mapping() != nullptr ? stamp_text(file->mapping()->opened()) : content(*file));
    return hex_of(w);
  }
  std::string name() const {
    ByteWriter w = start();
    for (const auto& file : files_) put(w, content(*file));
    for (const auto& file : files_) file->check_unchanged();
    return hex_of(w);
  }

 private:
  ByteWriter start() const {
    ByteWriter w;
    w.text(kVersion);
    put(w, contract_);
    return w;
  }
  std::string content(const FileBytes& file) const {
    const std::span<const std::byte> bytes = file.bytes();
    std::vector<Digest> digests((bytes.size() + kDigestedAtOnce - 1) / kDigestedAtOnce);
    run_each(threads_, digests.size(), [&](size_t i) {
      digests[i] = digest_of(bytes.subspan(
          i * kDigestedAtOnce, std::min(kDigestedAtOnce, bytes.size() - i * kDigestedAtOnce)));
    });
    return digest_text(digest_of(std::as_bytes(std::span(digests)))) + " " +
           std::to_string(bytes.size());
  }

  std::vector<std::shared_ptr<const FileBytes>> files_;
  std::string contract_;
  int threads_;
};

class Cache {
 public:
  Cache(const FileSource& source, const std::string& directory, const CacheOptions& use)
      : source_(source),
        directory_(directory),
        use_(use),
        threads_(use.threads > 0 ? use.threads : default_threads()),
        origin_(source, use.contract, threads_) {
    for (const char* part : {"/packed", "/files"}) make_directory(directory + part);
  }

  // Returns the directory of an intact entry, which it makes if there is none.
  std::string entry() {
    const std::string known = directory_ + "/files/" + origin_.stamps();
    std::string name = read_small(known);
    if (name.size() == 64 && is_plain_name(name) && is_whole(path_of(name))) return path_of(name);
    name = origin_.name();
    if (!is_whole(path_of(name))) make(name);
    write_small(known, name);
    return path_of(name);
  }

 private:
  std::string path_of(const std::string& name) const { return directory_ + "/packed/" + name; }

  static std::string read_small(const std::string& path) {
    std::error_code unknown;
    if (!fs::is_regular_file(path, unknown)) return "";
    try {
      return read_text_file(path, kSmall);
    } catch (const Error&) {
      return "";  // a text that cannot be read counts as missing
    }
  }

  // Returns the contract that the packed file of an entry names.
  Contract stored_contract() const {
    return use_.contract == Contract::bf16 ? Contract::f32 : use_.contract;
  }

  // Returns the names of the files that an entry copies unchanged from the source.
  std::vector<std::string> texts() const {
    std::vector<std::string> names = Tokenizer::files_of(source_);
    names.insert(names.end(), {"config.json", "generation_config.json"});
    std::erase_if(names, [&](const std::string& name) { return !source_.has(name); });
    return names;
  }

  // Returns the stamps of all files of an entry.
  std::string stamps_of(const std::string& entry) const {
    std::string all = stamp_text(MappedFile::open(entry + "/" + kPackedName)->opened());
    for (const std::string& name : texts())
      all += "\n" + stamp_text(MappedFile::open(entry + "/" + name)->opened());
    return all;
  }

  // Returns whether an entry is intact. Files unchanged since the last check are trusted; others
  // are compared with their digests and with the source.
  bool is_whole(const std::string& entry) const {
    const std::string stamp = entry + "/stamp";
    std::error_code unknown;
    if (!fs::is_regular_file(entry + "/" + kPackedName, unknown)) return false;
    try {
      const std::string now = stamps_of(entry);
      if (!use_.check && read_small(stamp) == now) return true;
      const auto source = directory_source(entry);
      check_packed(*source, threads_);
      if (contract_of_weights(*source) != stored_contract()) return false;
      for (const std::string& name : texts()) {
        if (!same_bytes(source->open(name)->bytes(), source_.open(name)->bytes())) return false;
      }
      write_small(stamp, now);
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  void make(const std::string& name) const {
    const std::string path = path_of(name), making = path + ".making";
    const Lock lock(path + ".lock");
    if (is_whole(path)) return;  // another process has made it in the meantime
    remove(making);
    pack_checkpoint(source_, use_.contract, making, threads_, use_.written);
    remove(path);
    std::error_code error;
    fs::rename(making, path, error);
    if (error)
      throw Error(ErrorKind::io, path, "", "",
                  "the new entry of the cache cannot be moved here: " + error.message());
    // packing computed the digests from the bytes that it wrote, so they need no check
    write_small(path + "/stamp", stamps_of(path));
  }

  static void remove(const std::string& path) {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) throw Error(ErrorKind::io, path, "", "", "cannot be deleted: " + error.message());
  }

  const FileSource& source_;
  std::string directory_;
  CacheOptions use_;
  int threads_;
  Origin origin_;
};

bool has_mxfp4(const Checkpoint& checkpoint) {
  return std::ranges::any_of(checkpoint.names(), [&](const std::string& name) {
    return checkpoint.find(name)->dtype == DType::mxfp4;
  });
}

}  // namespace

std::shared_ptr<const FileSource> cached(std::shared_ptr<const FileSource> source,
                                         const std::string& directory, const CacheOptions& use) {
  if (source->has(kPackedName)) return source;
  CacheOptions plain = use;
  // The contract bf16 uses the entry of f32, except that it widens blocks of MXFP4.
  if (use.contract == Contract::f32_blas ||
      (use.contract == Contract::bf16 && !has_mxfp4(Checkpoint::open(*source))))
    plain.contract = Contract::f32;
  return std::make_shared<const CachedSource>(*source, Cache(*source, directory, plain).entry());
}

}  // namespace stet
