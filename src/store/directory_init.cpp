// Creates a store in a directory.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "src/store/directory.hpp"
#include "src/store/directory_files.hpp"
#include "stet/files/file.hpp"

namespace stet {
namespace {

namespace fs = std::filesystem;

// Creates a directory and its parents. Returns false if it already exists, and leaves it unchanged.
bool make_store_directory(const std::string& path) {
  std::error_code error;
  const fs::path above = fs::path(path).parent_path();
  if (!above.empty()) fs::create_directories(above, error);
  if (error)
    throw Error(ErrorKind::io, path, "", "", "the directory cannot be made: " + error.message());
  if (::mkdir(path.c_str(), 0700) == 0) return true;
  struct stat info = {};
  if (errno != EEXIST) system_failed(path, "the directory cannot be made");
  if (::stat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode))
    throw Error(ErrorKind::io, path, "", "a directory", "a file");
  return false;
}

void sync_store_directory(const std::string& path) {
  const int fd = ::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

// Throws if the directory is not empty. Leftovers of a killed `init` and entries of the file system
// are allowed. A folder of the user's is never taken over, whatever its name.
void check_empty_directory(const std::string& path) {
  if (file_at(path + "/" + kStoreFile))
    throw Error(ErrorKind::argument, path, "store", "", "the directory is a store already");
  std::error_code error;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    const bool folder = std::ranges::count(kStoreFolders, "/" + name) > 0 && at->is_directory() &&
                        !at->is_symlink() && fs::is_empty(at->path());
    if (folder || name == "lost+found" || name.find(kTemporary) != std::string::npos) continue;
    throw Error(ErrorKind::argument, path, "store", "",
                "the directory has other files, such as " + printable(name, 60) +
                    "; name a new or empty one");
  }
  if (error)
    throw Error(ErrorKind::io, path, "", "", "the directory cannot be read: " + error.message());
}

}  // namespace

void create_directory_store(const std::string& where, uint64_t budget) {
  const std::string path = where.substr(0, where.find_last_not_of('/') + 1);
  const bool made = make_store_directory(path);
  check_empty_directory(path);
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) system_failed(path, "the directory cannot be opened");
  for (const char* folder : kStoreFolders) {
    if (make_store_directory(path + folder)) ::chmod((path + folder).c_str(), info.st_mode & 07777);
  }
  AtomicFile file(path + "/" + kStoreFile, info.st_mode & 0666, AtomicFile::Existing::replace);
  const std::string text = fmt::format("{}\nbudget {}\n", kStoreHead, budget);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
  if (made) sync_store_directory(fs::path(path).parent_path().string());
}

}  // namespace stet
