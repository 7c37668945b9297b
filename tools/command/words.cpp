#include "tools/command/words.hpp"

#include <algorithm>

namespace stet::tool {

std::string listed(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  return text;
}

// Computes the restricted Damerau-Levenshtein distance: swapped letters are not edited again.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min(
          {d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  constexpr size_t kLongest = 40;
  const std::string* best = nullptr;
  size_t least = word.size() / 3 + 1;  // words of up to two letters match nothing
  for (const std::string& candidate : known) {
    if (word.empty() || word.size() > kLongest) break;
    const size_t distance =
        word.size() > 3 && candidate.starts_with(word) ? 0 : edit_distance(word, candidate);
    if (distance >= least) continue;
    least = distance;
    best = &candidate;
  }
  return best == nullptr ? "" : ": did you mean " + *best + "?";
}

}  // namespace stet::tool
