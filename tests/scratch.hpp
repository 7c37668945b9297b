// What tests of files share: a directory that goes away, and the text of the Error that a call
// throws.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "error_of.hpp"
#include "stet/files/file.hpp"

namespace stet_test {

class ScratchDir {
 public:
  ScratchDir() : path_(STET_BUILD "/scratch-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  ~ScratchDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::string path_;
};

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

inline void write_file(const std::string& path, std::string_view content) {
  stet::AtomicFile file(path);
  file.write(as_bytes(content));
  file.commit();
}

}  // namespace stet_test
