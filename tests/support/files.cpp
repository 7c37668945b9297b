#include "tests/support/files.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "stet/files/file.hpp"

namespace stet::test {

TemporaryDirectory::TemporaryDirectory() : path_(STET_BUILD "/scratch-XXXXXX") {
  if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("cannot make " + path_);
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::vector<std::string> TemporaryDirectory::names() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path_))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string read_text(const std::string& path) { return read_text_file(path, SIZE_MAX); }

void write_file(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.write(as_bytes(content));
  file.commit();
}

}  // namespace stet::test
