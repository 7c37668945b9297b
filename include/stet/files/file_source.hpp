// The files of a model or a tokenizer, wherever they are: a directory, or an archive inside another
// file (archive.hpp), or memory. Files are asked for by their plain names ("config.json").
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
#include "stet/files/file.hpp"
#include "stet/files/mapped_file.hpp"

namespace stet {

// The content of one file, readable as long as the object lives.
class STET_API FileBytes {
 public:
  // `path` names the file in errors; `keeps_alive` owns the bytes. Where they are those of a mapped
  // file, or a part of them, that is `mapping`, which then keeps them alive as well.
  FileBytes(std::string path, std::span<const std::byte> bytes,
            std::shared_ptr<const void> keeps_alive,
            std::shared_ptr<const MappedFile> mapping = nullptr);

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

  // The mapped file that the bytes are of; null where they are in memory.
  const std::shared_ptr<const MappedFile>& mapping() const { return mapping_; }

  // Throws an io Error when the mapped file was written to since it was opened.
  void check_unchanged() const;

  // Says that bytes [offset, offset + size) were consumed, so that they need not stay in resident
  // memory. Out of range: nothing happens.
  void drop(size_t offset, size_t size) const;

  // Hands over all bytes, piece by piece in order, and drops each piece afterwards.
  void stream(const std::function<void(std::span<const std::byte>)>& use) const;

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> keeps_alive_;
  std::shared_ptr<const MappedFile> mapping_;
};

// Immutable; any number of threads may use one at once.
class FileSource {
 public:
  virtual ~FileSource() = default;

  virtual bool has(const std::string& name) const = 0;
  // The file, without a copy of it. Throws Error when there is none or it cannot be read.
  virtual std::shared_ptr<const FileBytes> open(const std::string& name) const = 0;
  // A copy of the whole content; a format Error when that is more than `limit` bytes.
  virtual std::string read(const std::string& name, size_t limit) const = 0;

  // Throws an io Error for a file that is not the source's own: what is put into a snapshot must
  // not come from elsewhere. Of a directory those are its own that are regular files in it, also
  // behind links, and those of the store beside it that Hugging Face's cache links to
  // (snapshots/REVISION/NAME -> ../../blobs/HASH).
  virtual void check_own(const std::string& name) const { (void)name; }

  // Return what errors call the source, and a file of it: "DIR" and "DIR/config.json",
  // "s.stet: WEIGHTS" and "s.stet: WEIGHTS: config.json".
  const std::string& path() const { return path_; }
  std::string path_of(const std::string& name) const { return prefix_ + name; }

 protected:
  FileSource(std::string path, std::string prefix)
      : path_(std::move(path)), prefix_(std::move(prefix)) {}

 private:
  std::string path_, prefix_;
};

// The files of a directory. open() maps them (see MappedFile), or, without `map`, reads them into
// memory, where nothing that happens to the file can reach them; read() reads. A link that leads
// nowhere counts as a file, which cannot be read.
STET_API std::shared_ptr<const FileSource> directory_source(const std::string& directory,
                                                            bool map = true);

// The files of another source, copied into memory when they are opened.
STET_API std::shared_ptr<const FileSource> in_memory(std::shared_ptr<const FileSource> source);

// Files by name, with their bytes, as Tokenizer::files() gives them.
STET_API std::shared_ptr<const FileSource> memory_source(
    std::vector<std::pair<std::string, std::string>> files, const std::string& path);

// Whether a name cannot lead out of a directory: not empty, ".", or "..", without '/', '\' and NUL.
STET_API bool is_plain_name(std::string_view name);

}  // namespace stet
