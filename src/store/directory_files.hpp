// Names of the files in a directory store, and a check of their kind.
#pragma once

#include <sys/stat.h>

#include <cerrno>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "stet/base/error.hpp"

namespace stet {

constexpr char kStoreFile[] = "stet-store", kStoreHead[] = "stet store 1";
constexpr const char* kStoreFolders[] = {"/blocks", "/states", "/names", "/leases"};
constexpr std::string_view kTemporary = ".tmp-";  // part of the names of AtomicFile's temporaries

[[noreturn]] inline void system_failed(const std::string& path, const std::string& what) {
  throw Error(ErrorKind::io, path, "", "", what + ": " + std::generic_category().message(errno));
}

// Returns the status of a regular file, or nothing for a link, a pipe or anything else, which
// cannot belong to the store.
inline std::optional<struct stat> file_at(const std::string& path) {
  struct stat info = {};
  if (::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  return info;
}

}  // namespace stet
