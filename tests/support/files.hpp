// Temporary directories that are removed with their owner, and whole files as text.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stet::test {

// An empty directory below the build directory. The destructor removes it with its contents.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory();

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  // Returns the sorted names of the directory's entries.
  std::vector<std::string> names() const;

 private:
  std::string path_;
};

// Returns the bytes of a file of any length. Throws Error.
std::string read_text(const std::string& path);

// Creates or replaces a file in one step. Throws Error.
void write_file(const std::string& path, std::string_view content);

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace stet::test
