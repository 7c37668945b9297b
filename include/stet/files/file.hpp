// Reading whole files, and writing files that appear only when complete. Every failure of the
// operating system is an io Error with the path and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stet/api.h"
#include "stet/base/memory.hpp"

namespace stet {

// Returns the content of a regular file. Throws a format Error if it has more than `limit` bytes.
// Rejects anything else, such as a pipe or device, at once.
STET_API std::vector<std::byte> read_file(const std::string& path, size_t limit);
STET_API std::string read_text_file(const std::string& path, size_t limit);
// Like read_text_file(), for input that a user has named: "/dev/stdin" and "/dev/fd/N" may be
// pipes.
STET_API std::string read_text_input(const std::string& path, size_t limit);

// The content of a file in page-aligned memory.
struct FileContent {
  Memory memory;
  size_t size;
  std::span<const std::byte> bytes() const { return {memory.data(), size}; }  // page-aligned
};
// Returns the content of a regular file. Throws an io Error if it is truncated meanwhile.
STET_API FileContent read_file_to_memory(const std::string& path);

// Writes a file atomically: bytes go to a temporary file beside `path`, which commit() makes
// durable and renames. Without commit(), or on failure, the temporary is removed and an existing
// file at `path` stays unchanged.
//
// A temporary left by a killed process is removed by the next AtomicFile for the same path.
class STET_API AtomicFile {
 public:
  // The treatment of a `path` that is not a regular file. `follow` writes the target of a link,
  // which need not exist; the link stays. It rejects devices, pipes and files that the process may
  // not write. `replace` puts the file in the place of any of these, and never touches another
  // file. Use it in directories that others can write to. Both reject directories.
  enum class Existing { follow, replace };

  // Creates the temporary in the file's directory, which must be writable. A replaced regular file
  // keeps its mode. A new one has `mode`, less the umask, from its first byte; use 0600 for private
  // content.
  explicit AtomicFile(std::string path, unsigned mode = 0666, Existing existing = Existing::follow);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  // Appends bytes. Small pieces are buffered; large ones are not copied.
  void write(std::span<const std::byte> bytes);

  // Overwrites bytes that were appended before.
  void write_at(uint64_t offset, std::span<const std::byte> bytes);

  // Hands appended bytes to the system. Returns the temporary's path, for checks before the file
  // appears.
  const std::string& uncommitted();

  // Makes the file appear: fsync, rename, fsync of the directory. If only the last fails, the
  // Error's field is "durability": the new file is complete and in place, but a power loss may undo
  // that. Nothing may be written afterwards.
  void commit();

  uint64_t written() const { return written_; }  // bytes appended so far
  const std::string& path() const { return path_; }

 private:
  void create_temporary(const std::string& start, unsigned mode);
  void flush();
  void write_through(std::span<const std::byte> bytes);
  void start_writeback() noexcept;
  void discard() noexcept;
  [[noreturn]] void fail(const std::string& expected);

  std::string path_, target_;          // path as given, and the file it leads to
  std::string directory_, temporary_;  // temporary_ is empty if there is none
  int fd_ = -1;
  uint64_t written_ = 0;
  // Bytes handed to the system; of these, bytes whose write-back was started.
  uint64_t in_file_ = 0, on_its_way_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace stet
