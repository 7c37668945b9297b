// Lists of words for messages, and suggestions for misspelt ones.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace stet::tool {

// Returns "a, b or c".
std::string listed(const std::vector<std::string>& words);
// Returns the least number of insertions, deletions, changes and swaps of neighbours that turn `a`
// into `b`.
size_t edit_distance(std::string_view a, std::string_view b);
// Returns ": did you mean X?" for the nearest known word, or for one that `word` begins; else "".
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

}  // namespace stet::tool
