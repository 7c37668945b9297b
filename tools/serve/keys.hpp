// The API keys that a server accepts, and their owners.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "stet/base/sha256.hpp"

namespace stet::serve {

// Names of clients, by the hashes of their keys.
class Keys {
 public:
  Keys() = default;
  // Reads a file with "KEY" or "NAME KEY" on each line; # begins a comment. A client without a name
  // is named by its key's hash. Throws an io Error if others may read or write the file. Throws a
  // format Error for a malformed line, a duplicate key, or no key at all.
  explicit Keys(const std::string& path);

  bool any() const { return !keys_.empty(); }
  std::vector<std::string> clients() const;  // their names
  // Returns the client of an Authorization header, or "" for a wrong key. Compares all keys in
  // constant time.
  std::string client(const std::string& authorization) const;

 private:
  void add(const std::string& path, size_t line, std::string text);

  std::vector<std::pair<Sha256, std::string>> keys_;
};

}  // namespace stet::serve
