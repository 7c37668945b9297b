// The files that a chat writes to: none is replaced that it does not know as it is.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace stet::tool {

class SaveTargets {
 public:
  // The file at `path` may be replaced as it is now: the chat has read it, or was told to.
  void know(const std::string& path);
  // Throws an argument Error where there is a file that is not known; `option` and `instead` are
  // for its text. An empty file is as good as none.
  void check(const std::string& path, const std::string& option, const std::string& instead) const;
  // Calls write(path), and returns that path. Where somebody else has written or changed the file
  // since it was known, it is that of a new file beside it. `mode`: of a new file.
  std::string save(const std::string& path, unsigned mode,
                   const std::function<void(const std::string& path)>& write);

 private:
  // Tells a file from what it was; of an empty one nothing.
  struct Stamp {
    uint64_t device = 0, inode = 0;
    int64_t size = 0, modified = 0;
    bool operator==(const Stamp&) const = default;
  };
  class Hold;
  static std::optional<Stamp> stamp_of(const std::string& path);

  std::map<std::string, std::optional<Stamp>> known_;  // by canonical path; nothing: none was there
};

}  // namespace stet::tool
