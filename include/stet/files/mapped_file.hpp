// A file mapped into memory: read where it lies, shared with every process that maps it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "stet/api.h"

namespace stet {

// What the system says of a file's content without reading it. Equal stamps: nobody has written to
// the file, cut it off or made it unreadable in between. A write through somebody's writable
// mapping is the gap: the system may note it late.
struct FileStamp {
  uint64_t device = 0, inode = 0;
  int64_t size = 0;
  int64_t modified = 0, changed = 0;  // mtime and ctime, in ns; no program can set ctime
  uint64_t torn = 0;                  // how often a part of the mapping could not be read
  bool operator==(const FileStamp&) const = default;
};

// A regular, non-empty file mapped read-only. The mapping lasts as long as the object, and any
// number of threads may read it. Replacing the file by rename does no harm.
//
// Where the file is cut off, or its disk fails, the page that cannot be read and all behind it are
// zeros from then on, and the stamp counts it: whoever compares digests or stamps finds out, and
// nobody dies of SIGBUS. A handler of that signal, installed with the first mapping of the process,
// does this for addresses within mappings of this class; it passes all others on to the handler
// that was there before. A program that installs a handler of its own later must pass signals on
// likewise, or use no mapping: directory_source(directory, false), Snapshot::parse.
class STET_API MappedFile {
 public:
  // Throws an io Error for what cannot be opened or is no regular file, a format Error for one of 0
  // bytes.
  static std::shared_ptr<const MappedFile> open(const std::string& path);

  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }  // page-aligned
  const std::string& path() const { return path_; }

  FileStamp stamp() const;  // of now; an empty one where the system gives none any more
  const FileStamp& opened() const { return opened_; }  // of when it was opened
  // Throws an io Error when the file was truncated or written to since it was opened.
  void check_unchanged() const;

  // Says that bytes [offset, offset + size) were consumed: their whole pages leave this process's
  // resident memory. They stay readable, from the page cache or from disk.
  void drop(size_t offset, size_t size) const;

 private:
  class Guard;
  MappedFile() = default;

  std::string path_;
  std::span<const std::byte> bytes_;
  int fd_ = -1;
  FileStamp opened_;
  std::unique_ptr<Guard> guard_;
};

}  // namespace stet
