#include "tools/serve/keys.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

#include "stet/base/error.hpp"
#include "stet/files/file.hpp"

namespace stet::serve {
namespace {

constexpr size_t kLeastKey = 8, kMostKeyFile = size_t{1} << 20;

Sha256 hash_of(const std::string& key) { return sha256_of(std::as_bytes(std::span(key))); }

}  // namespace

Keys::Keys(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) == 0 && (info.st_mode & 077) != 0)
    throw Error(ErrorKind::io, path, "permissions", "600: keys that their owner alone can read",
                fmt::format("{:o}", info.st_mode & 0777));
  const std::string text = read_text_file(path, kMostKeyFile);
  size_t line = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    add(path, ++line, text.substr(at, end - at));
    at = end + 1;
  }
  if (keys_.empty()) throw Error(ErrorKind::format, path, "keys", "at least one", "none");
}

void Keys::add(const std::string& path, size_t line, std::string text) {
  text.erase(text.find_last_not_of(" \t\r") + 1);
  text.erase(0, text.find_first_not_of(" \t"));
  if (text.empty() || text[0] == '#') return;
  const size_t space = text.find_first_of(" \t");
  const std::string key =
      text.substr(space == std::string::npos ? 0 : text.find_first_not_of(" \t", space));
  const std::string field = fmt::format("line {}", line);
  if (key.size() < kLeastKey)
    throw Error(ErrorKind::format, path, field,
                fmt::format("a key of at least {} characters", kLeastKey), "a shorter one");
  const Sha256 hash = hash_of(key);
  if (std::ranges::find(keys_, hash, &std::pair<Sha256, std::string>::first) != keys_.end())
    throw Error(ErrorKind::format, path, field, "each key once", "one of an earlier line");
  keys_.emplace_back(hash, space == std::string::npos ? "key-" + sha256_text(hash).substr(7, 12)
                                                      : text.substr(0, space));
}

std::vector<std::string> Keys::clients() const {
  std::vector<std::string> names;
  for (const auto& [hash, name] : keys_) names.push_back(name);
  return names;
}

std::string Keys::client(const std::string& authorization) const {
  constexpr std::string_view kScheme = "bearer ";  // in any case (RFC 9110, section 11.1)
  const auto same = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b; };
  const std::string scheme = authorization.substr(0, kScheme.size());
  if (!std::ranges::equal(scheme, kScheme, same)) return "";
  const Sha256 given = hash_of(authorization.substr(kScheme.size()));
  std::string found;
  for (const auto& [key, name] : keys_) {
    unsigned different = 0;
    for (size_t i = 0; i < key.bytes.size(); ++i)
      different |= std::to_integer<unsigned>(key.bytes[i] ^ given.bytes[i]);
    if (different == 0) found = name;
  }
  return found;
}

}  // namespace stet::serve
