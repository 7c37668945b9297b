// Several files in one run of bytes, to be embedded in another file: how a snapshot holds the
// weights. docs/snapshot-format.md ("Archives") has the grammar.
//
// The index holds a digest of every file, so whoever keeps a digest of the index alone covers all
// of the archive.
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

struct ArchiveIndex {
  struct Entry {
    std::string name;
    uint64_t offset = 0, size = 0;
    Digest digest;
  };
  std::span<const std::byte> bytes;  // the index itself, at the front of the archive
  std::vector<Entry> entries;        // in the order of their offsets
};

// Reads the index and checks everything but the bytes of the files. `path` names the archive in
// errors. Throws Error: format.
STET_API ArchiveIndex read_archive_index(std::span<const std::byte> archive,
                                         const std::string& path);

// The files of an archive; `archive` is all of it and no more. Index and gaps are checked at once,
// the bytes of a file against its digest each time it is opened or read. `keeps_alive` and
// `mapping` are as for FileBytes. Throws Error: format.
STET_API std::shared_ptr<const FileSource> archive_source(
    std::span<const std::byte> archive, std::shared_ptr<const void> keeps_alive,
    const std::string& path, std::shared_ptr<const MappedFile> mapping = nullptr);

// Writes an archive without holding a file of it in memory.
class STET_API ArchiveWriter {
 public:
  // Opens and digests the files of `source` by these names; they stay open. Throws Error: argument
  // for names that the format does not allow, and what FileSource::open throws.
  ArchiveWriter(const FileSource& source, const std::vector<std::string>& names);

  std::span<const std::byte> index() const { return index_; }
  uint64_t size() const { return size_; }  // bytes that write() appends

  // Appends the archive. Throws Error: argument when the file does not stand at a multiple of 4096;
  // mismatch when a source file changed since it was digested; what AtomicFile::write throws.
  void write(AtomicFile& file) const;

 private:
  std::vector<std::shared_ptr<const FileBytes>> files_;
  std::vector<ArchiveIndex::Entry> entries_;
  std::vector<std::byte> index_;
  uint64_t size_ = 0;
};

}  // namespace stet
