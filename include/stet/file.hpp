// Files read whole, files mapped into memory, and files that appear only when complete. Every
// failure of the operating system is an io Error with the path and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace stet {

// A regular, non-empty file mapped read-only. The mapping lasts as long as the object. Whoever
// truncates the file meanwhile makes reads beyond its new end fault (SIGBUS); replacing it by
// rename does no harm.
class MappedFile {
 public:
  static std::shared_ptr<const MappedFile> open(const std::string& path);

  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }  // page-aligned
  const std::string& path() const { return path_; }

  // Throws an io Error when the file was truncated or written to since it was opened.
  void check_unchanged() const;

  // Says that bytes [offset, offset + size) were consumed: their whole pages leave this process's
  // resident memory. They stay readable, from the page cache or from disk.
  void drop(size_t offset, size_t size) const;

 private:
  MappedFile() = default;

  std::string path_;
  std::span<const std::byte> bytes_;
  int fd_ = -1;
  int64_t modified_ = 0;  // when the file was last written to, in ns
};

// The content of a file or a pipe; a format Error when that is more than `limit` bytes.
std::vector<std::byte> read_file(const std::string& path, size_t limit);
std::string read_text_file(const std::string& path, size_t limit);

// Writes a file that nobody sees half: the bytes go to a temporary beside `path`, which commit()
// makes durable and then renames. Without commit, or when anything fails, the temporary goes and an
// older file at `path` stays as it was. A temporary left by a killed process is removed by the next
// AtomicFile for the same path.
class AtomicFile {
 public:
  // Creates the temporary. `path` must be new or a regular file, its directory writable.
  explicit AtomicFile(std::string path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  // Appends. Small pieces are gathered; large ones go to the system uncopied.
  void write(std::span<const std::byte> bytes);

  // Overwrites bytes that were appended before.
  void write_at(uint64_t offset, std::span<const std::byte> bytes);

  // fsync, rename, fsync of the directory. When the last of these alone fails, the new file is in
  // place but may not outlive a loss of power. Nothing may be written afterwards.
  void commit();

  uint64_t written() const { return written_; }  // bytes appended so far
  const std::string& path() const { return path_; }

 private:
  void create_temporary();
  void flush();
  void write_through(std::span<const std::byte> bytes);
  void start_writeback() noexcept;
  void discard() noexcept;
  [[noreturn]] void fail(const std::string& expected);

  std::string path_, directory_, temporary_;  // temporary_ is empty when there is none
  int fd_ = -1;
  uint64_t written_ = 0;
  uint64_t in_file_ = 0, on_its_way_ = 0;  // handed to the system; and of that, told to go to the disk
  std::vector<std::byte> buffer_;
};

}  // namespace stet
