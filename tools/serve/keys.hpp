// The API keys that a server accepts, and whose they are.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "stet/base/sha256.hpp"

namespace stet::serve {

// Names of clients by the hashes of their keys.
class Keys {
 public:
  Keys() = default;
  // Reads "KEY" or "NAME KEY" on each line of a file; others begin with #. A client without a name
  // is called by its key's hash. Throws an io Error where others than its owner may read the file
  // or write to it, a format Error for a line that holds no key, a key that comes twice, and for
  // none.
  explicit Keys(const std::string& path);

  bool any() const { return !keys_.empty(); }
  // The client of an Authorization header, "" for a wrong one. All keys are compared, in a time
  // that tells nothing of them.
  std::string client(const std::string& authorization) const;

 private:
  void add(const std::string& path, size_t line, std::string text);

  std::vector<std::pair<Sha256, std::string>> keys_;
};

}  // namespace stet::serve
