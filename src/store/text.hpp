// Text helpers: lines and words, hashes as hex digits, and names of states.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "stet/base/sha256.hpp"

namespace stet {

inline std::string hex_of_hash(const Sha256& hash) { return sha256_text(hash).substr(7); }
inline std::optional<Sha256> hash_of_hex(const std::string& hex) {
  return hex.size() == 64 ? parse_sha256("sha256:" + hex) : std::nullopt;
}

// Returns the text up to the next "\n", or to the end, and removes it and the newline from `text`.
inline std::string next_line(std::string_view& text) {
  const std::string line(text.substr(0, text.find('\n')));
  text.remove_prefix(std::min(line.size() + 1, text.size()));
  return line;
}
// Returns the next word, separated by blanks and line ends, and removes it from `text`. Returns ""
// if there are no more.
inline std::string next_word(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  const std::string word(text.substr(0, text.find_first_of(" \t\r\n")));
  text.remove_prefix(word.size());
  return word;
}

// Returns a URL for messages: "..." stands for user and password, up to the last "@".
inline std::string without_login(const std::string& url) {
  const size_t at = url.rfind('@'), colon = std::min(url.find(':'), url.size()),
               login = std::min(url.find_first_not_of('/', colon + 1), url.size());
  return at == std::string::npos || at < login ? url
                                               : url.substr(0, login) + "..." + url.substr(at);
}

// Returns true for 1 to 128 of a-z A-Z 0-9 . _ - that begin with neither a dot nor a hyphen.
bool is_store_name(const std::string& name);

}  // namespace stet
