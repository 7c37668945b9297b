// Files mapped into memory, read in place and shared with all processes that map them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "stet/api.h"

namespace stet {

// A file's metadata, for detecting changes without reading it. If stamps are equal, the file was
// not written, truncated or made unreadable in between. One exception: the system may record a
// write through another process's writable mapping late.
struct FileStamp {
  uint64_t device = 0, inode = 0;
  int64_t size = 0;
  int64_t modified = 0, changed = 0;  // mtime and ctime in ns; programs cannot set ctime
  uint64_t read_failures = 0;         // failed reads of parts of the mapping
  bool operator==(const FileStamp&) const = default;
};

// A regular, non-empty file mapped read-only. The mapping lasts as long as the object, and any
// number of threads may read it. Replacing the file by rename is safe.
//
// If the file is truncated or its disk fails, the first unreadable page and everything after it
// read as zeros from then on. No SIGBUS reaches the program. The stamp counts this, so comparing
// digests or stamps detects it.
//
// This is done by a SIGBUS handler, installed with the first mapping of the process. It handles
// addresses in these mappings and passes all others to the previous handler. A program that
// installs its own handler later must pass signals on, too, or avoid mappings:
// directory_source(directory, false), Snapshot::parse.
class STET_API MappedFile {
 public:
  // Maps a file. Throws an io Error if it cannot be opened or is not a regular file, and a format
  // Error if it is empty.
  static std::shared_ptr<const MappedFile> open(const std::string& path);

  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }  // page-aligned
  const std::string& path() const { return path_; }

  FileStamp stamp() const;                             // current stamp; empty if unavailable
  const FileStamp& opened() const { return opened_; }  // stamp when it was opened
  // Throws an io Error if the file was truncated or modified since it was opened.
  void check_unchanged() const;

  // Reports that bytes [offset, offset + size) were consumed: their whole pages leave this
  // process's resident memory. They stay readable, from the page cache or from disk.
  void drop(size_t offset, size_t size) const;
  // Brings the pages of bytes [offset, offset + size) into the map by one call, for bytes that are
  // read at once anyway. A page fault for every few pages costs more. Linux before 5.14 lacks the
  // call, and the pages come by page faults.
  void populate(size_t offset, size_t size) const;

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
