// Words of the command line, and those that were perhaps meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace stet::tool {

// "a, b or c".
std::string listed(const std::vector<std::string>& words);
// How many letters are put in, left out, changed, or swapped with the next, to make `b` of `a`.
size_t edit_distance(std::string_view a, std::string_view b);
// ": did you mean X?", where one of the known words is near or begins with the word; else "".
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

}  // namespace stet::tool
