// An archive: several files in one run of bytes inside another file, as in a snapshot with weights.
// docs/formats.md ("Archives") defines the format.
//
// The index contains a digest of every file, so a digest of the index covers the whole archive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/base/digest.hpp"
#include "stet/files/file.hpp"
#include "stet/files/file_source.hpp"

namespace stet {

inline constexpr uint64_t kArchiveAlignment = 4096;

// The index of an archive.
struct ArchiveIndex {
  struct Entry {
    std::string name;
    uint64_t offset = 0, size = 0;
    Digest digest;
  };
  std::span<const std::byte> bytes;  // the index, at the beginning of the archive
  std::vector<Entry> entries;        // in order of their offsets
};

// Reads the index and checks everything except the bytes of the files. `path` names the archive in
// errors. Throws a format Error.
STET_API ArchiveIndex read_archive_index(std::span<const std::byte> archive,
                                         const std::string& path);

// Returns the files of `archive`, which must be exactly the archive. Index and gaps are checked at
// once, a file's bytes each time it is opened or read. See FileBytes for `keeps_alive` and
// `mapping`. Throws a format Error.
STET_API std::shared_ptr<const FileSource> archive_source(
    std::span<const std::byte> archive, std::shared_ptr<const void> keeps_alive,
    const std::string& path, std::shared_ptr<const MappedFile> mapping = nullptr);

// Writes an archive without holding a whole file in memory.
class STET_API ArchiveWriter {
 public:
  // Opens and digests the files of `source` with these names; they stay open. Throws an argument
  // Error for invalid names, and what FileSource::open throws.
  ArchiveWriter(const FileSource& source, const std::vector<std::string>& names);

  std::span<const std::byte> index() const { return index_; }
  uint64_t size() const { return size_; }  // bytes that write() appends

  // Appends the archive. Throws an argument Error unless the file's size is a multiple of 4096.
  // Throws a mismatch Error if a source file has changed since it was digested, and what
  // AtomicFile::write throws.
  void write(AtomicFile& file) const;

 private:
  std::vector<std::shared_ptr<const FileBytes>> files_;
  std::vector<ArchiveIndex::Entry> entries_;
  std::vector<std::byte> index_;
  uint64_t size_ = 0;
};

}  // namespace stet
