// The files that a chat writes to. It replaces only files whose content it knows.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace stet::tool {

class SaveTargets {
 public:
  // Allows the file at `path` to be replaced as it is now: the chat has read it, or the user said
  // so.
  void know(const std::string& path);
  // Throws if there is a file that is not known. `option` and `instead` go into the text. An empty
  // file counts as none.
  void check(const std::string& path, const std::string& option, const std::string& instead) const;
  // Calls write(path) and returns that path. If another program has changed the file since it was
  // known, writes to a new file beside it. `mode` is for a new file.
  std::string save(const std::string& path, unsigned mode,
                   const std::function<void(const std::string& path)>& write);

 private:
  // The properties of a file by which changes are recognized. An empty file counts as no file.
  struct Stamp {
    uint64_t device = 0, inode = 0;
    int64_t size = 0, modified = 0;
    bool operator==(const Stamp&) const = default;
  };
  class Hold;
  static std::optional<Stamp> stamp_of(const std::string& path);

  std::map<std::string, std::optional<Stamp>> known_;  // key: canonical path; null: no file
};

}  // namespace stet::tool
