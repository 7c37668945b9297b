// Files read whole, and files that appear only when complete. Every failure of the operating system
// is an io Error with the path and the system's reason.
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

// The content of a regular file; a format Error when that is more than `limit` bytes. Anything
// else, a pipe or a device, is refused at once.
STET_API std::vector<std::byte> read_file(const std::string& path, size_t limit);
STET_API std::string read_text_file(const std::string& path, size_t limit);
// The same of what somebody named as input: the streams that this process was given, "/dev/stdin"
// and "/dev/fd/N", may be pipes.
STET_API std::string read_text_input(const std::string& path, size_t limit);

struct FileContent {
  Memory memory;
  size_t size;
  std::span<const std::byte> bytes() const { return {memory.data(), size}; }  // page-aligned
};
// The content of a regular file; an io Error when it is cut off meanwhile.
STET_API FileContent read_file_to_memory(const std::string& path);

// Writes a file that nobody sees half: the bytes go to a temporary beside `path`, which commit()
// makes durable and then renames. Without commit, or when anything fails, the temporary goes and an
// older file at `path` stays as it was. A temporary left by a killed process is removed by the next
// AtomicFile for the same path. Where `path` is a link, all this happens to the file that it leads
// to, which need not be there yet; the link stays.
class STET_API AtomicFile {
 public:
  // Creates the temporary. `path` must be new or a regular file, its directory writable. A file
  // that is replaced keeps its mode; a new one has `mode`, from its first byte, less what the umask
  // takes: what holds somebody's conversation asks for 0600.
  explicit AtomicFile(std::string path, unsigned mode = 0666);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  // Appends. Small pieces are gathered; large ones go to the system uncopied.
  void write(std::span<const std::byte> bytes);

  // Overwrites bytes that were appended before.
  void write_at(uint64_t offset, std::span<const std::byte> bytes);

  // Hands what was appended so far to the system. Returns the temporary's path, for who checks the
  // file before it appears.
  const std::string& uncommitted();

  // fsync, rename, fsync of the directory. When the last of these alone fails, the Error's field is
  // "durability": the new file is in place, whole, but a loss of power may undo that. Nothing may
  // be written afterwards.
  void commit();

  uint64_t written() const { return written_; }  // bytes appended so far
  const std::string& path() const { return path_; }

 private:
  void create_temporary(unsigned mode);
  void flush();
  void write_through(std::span<const std::byte> bytes);
  void start_writeback() noexcept;
  void discard() noexcept;
  [[noreturn]] void fail(const std::string& expected);

  std::string path_, target_;          // as it was given; the file that it leads to
  std::string directory_, temporary_;  // temporary_ is empty when there is none
  int fd_ = -1;
  uint64_t written_ = 0;
  uint64_t in_file_ = 0,
           on_its_way_ = 0;  // handed to the system; and of that, told to go to the disk
  std::vector<std::byte> buffer_;
};

}  // namespace stet
