// The files of a model or tokenizer, from a directory, an archive inside another file
// (archive.hpp), or memory. Files are requested by plain names ("config.json").
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stet/api.h"
#include "stet/base/json_reader.hpp"
#include "stet/files/file.hpp"
#include "stet/files/mapped_file.hpp"

namespace stet {

// The content of one file, readable as long as the object lives.
class STET_API FileBytes {
 public:
  // `path` names the file in errors. `keeps_alive` owns the bytes. `mapping` is the mapped file
  // that contains the bytes, if any; it is kept alive as well.
  FileBytes(std::string path, std::span<const std::byte> bytes,
            std::shared_ptr<const void> keeps_alive,
            std::shared_ptr<const MappedFile> mapping = nullptr);

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

  // Returns the mapped file that contains the bytes, or null if they are in memory.
  const std::shared_ptr<const MappedFile>& mapping() const { return mapping_; }

  // Throws an io Error if the mapped file was modified since it was opened.
  void check_unchanged() const;

  // Reports that bytes [offset, offset + size) were consumed and need not stay in resident memory.
  // Does nothing if they are out of range.
  void drop(size_t offset, size_t size) const;

  // Passes all bytes to `use` in order, piece by piece, and drops each piece afterwards.
  void stream(const std::function<void(std::span<const std::byte>)>& use) const;

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> keeps_alive_;
  std::shared_ptr<const MappedFile> mapping_;
};

// A source of files. Immutable: any number of threads may use one at once.
class STET_API FileSource {
 public:
  virtual ~FileSource() = default;

  virtual bool has(const std::string& name) const = 0;
  // Opens a file without copying it. Never returns null: throws Error if the file does not exist or
  // cannot be read.
  virtual std::shared_ptr<const FileBytes> open(const std::string& name) const = 0;
  // Returns a copy of the content. Throws a format Error if it has more than `limit` bytes.
  virtual std::string read(const std::string& name, size_t limit) const = 0;
  // Returns the object that a JSON file consists of; Infinity and NaN are numbers there. Throws a
  // format Error for other content, or a text of more than `limit` bytes. A source that makes the
  // file from other data returns the values without a text in between.
  virtual JsonReader json(const std::string& name, size_t limit) const;

  // Throws an io Error for a file that does not belong to the source, because snapshots must not
  // include foreign files. A directory owns the regular files in it, including those that links in
  // it lead to. It also owns the files in the adjacent store of Hugging Face's cache
  // (snapshots/REVISION/NAME -> ../../blobs/HASH).
  virtual void check_own(const std::string& name) const { (void)name; }

  // Return the names of the source and of a file in errors: "DIR" and "DIR/config.json", "s.stet:
  // WEIGHTS" and "s.stet: WEIGHTS: config.json".
  const std::string& path() const { return path_; }
  std::string path_of(const std::string& name) const { return prefix_ + name; }

 protected:
  FileSource(std::string path, std::string prefix)
      : path_(std::move(path)), prefix_(std::move(prefix)) {}

 private:
  std::string path_, prefix_;
};

// Returns the files of a directory. open() maps them (see MappedFile) or, if `map` is false, reads
// them into memory, independent of later changes. read() always reads. A dangling link counts as an
// unreadable file.
STET_API std::shared_ptr<const FileSource> directory_source(const std::string& directory,
                                                            bool map = true);

// Returns the files of another source, copied into memory when they are opened.
STET_API std::shared_ptr<const FileSource> in_memory(std::shared_ptr<const FileSource> source);

// Returns files given by name and content, as from Tokenizer::files().
STET_API std::shared_ptr<const FileSource> memory_source(
    std::vector<std::pair<std::string, std::string>> files, const std::string& path);

// Returns true if a name cannot lead out of a directory: not empty, "." or "..", and without '/',
// '\' and NUL.
STET_API bool is_plain_name(std::string_view name);

}  // namespace stet
