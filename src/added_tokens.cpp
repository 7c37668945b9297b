#include "src/added_tokens.hpp"

#include <algorithm>

#include "src/utf8.hpp"

namespace stet {

void AddedTokenFinder::add(const AddedToken& token, const std::string& looked_for,
                           const std::string& file) {
  if (looked_for.empty()) return;
  if (token.single_word && !word_)
    word_ = Pattern::regex("\\A\\w", file, "single_word of " + token.text);
  uint32_t node = 0;
  for (const char c : looked_for) {
    const uint64_t edge = uint64_t{node} << 8 | static_cast<unsigned char>(c);
    const auto [it, fresh] = edges_.try_emplace(edge, static_cast<uint32_t>(ends_.size()));
    if (fresh) ends_.push_back(-1);
    node = it->second;
  }
  if (ends_[node] < 0) ends_[node] = static_cast<int32_t>(tokens_.size());
  starts_[static_cast<unsigned char>(looked_for[0])] = true;
  tokens_.push_back(token);
}

std::pair<size_t, const AddedToken*> AddedTokenFinder::longest_at(std::string_view text,
                                                                  size_t at) const {
  std::pair<size_t, const AddedToken*> best{0, nullptr};
  uint32_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    const auto it = edges_.find(uint64_t{node} << 8 | static_cast<unsigned char>(text[i]));
    if (it == edges_.end()) break;
    node = it->second;
    if (ends_[node] >= 0) best = {i + 1 - at, &tokens_[static_cast<size_t>(ends_[node])]};
  }
  return best;
}

bool AddedTokenFinder::stands_alone(std::string_view text, size_t begin, size_t end) const {
  const auto is_word = [&](std::string_view character) {
    Match match;
    return Pattern::Finder(*word_, character).next(match);
  };
  if (begin > 0) {
    const size_t length = utf8_last(text.substr(0, begin));
    if (is_word(text.substr(begin - length, length))) return false;
  }
  return end == text.size() || !is_word(text.substr(end, utf8_at(text, end).length));
}

void AddedTokenFinder::split(const Segment& segment, std::span<const TextRange> plain,
                             std::vector<Segment>& out) const {
  const std::string_view text = segment.text;
  size_t done = 0;
  const auto touches = [plain](size_t begin, size_t end) {
    const auto first = std::upper_bound(plain.begin(), plain.end(), begin,
                                        [](size_t at, const TextRange& range) { return at < range.end; });
    return first != plain.end() && first->begin < end;
  };
  const auto put = [&](size_t begin, size_t end, int32_t id) {
    if (begin == end) return;
    out.push_back({text.substr(begin, end - begin), id, segment.first && begin == 0,
                   id < 0 && touches(begin, end)});
  };
  for (size_t at = 0; at < text.size();) {
    if (!starts_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const auto [length, token] = longest_at(text, at);
    if (!token) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + length;
    at = end;
    if (begin < done || (token->reserved && touches(at - length, at))) continue;
    if (token->single_word && !stands_alone(text, begin, end)) continue;
    while (token->lstrip && begin > done) {
      const size_t last = utf8_last(text.substr(0, begin));
      if (!is_white_space(utf8_at(text, begin - last).code)) break;
      begin -= last;
    }
    while (token->rstrip && end < text.size()) {
      const Utf8 c = utf8_at(text, end);
      if (!is_white_space(c.code)) break;
      end += c.length;
    }
    put(done, begin, -1);
    put(begin, end, token->id);
    done = end;
  }
  put(done, text.size(), -1);
}

}  // namespace stet
