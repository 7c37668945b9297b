#include "src/text/added_tokens.hpp"

#include <algorithm>
#include <numeric>

#include "src/text/text_budget.hpp"
#include "stet/text/utf8.hpp"

namespace stet {
namespace {

// Finds runs of white space in a text. Queries in ascending order read each character once, however
// many of them fall into one run.
class WhiteSpace {
 public:
  explicit WhiteSpace(std::string_view text) : text_(text) {}

  // Returns the end of the white space that begins at `at`, or `at` if there is none.
  size_t end_of_run(size_t at) {
    if (at >= begin_ && at < end_) return end_;
    begin_ = end_ = at;
    while (end_ < text_.size()) {
      const Utf8 c = utf8_at(text_, end_);
      if (!is_white_space(c.code)) break;
      end_ += c.length;
    }
    return end_;
  }

 private:
  std::string_view text_;
  size_t begin_ = 0, end_ = 0;  // the run found last
};

}  // namespace

void AddedTokenFinder::add(const AddedToken& token, const std::string& looked_for,
                           const std::string& file) {
  if (looked_for.empty()) return;
  if (token.single_word && !word_) {
    word_ = Pattern::regex("\\A[" + std::string(kUnicodeWord) + kJoiners + "]", file,
                           "single_word of " + token.text);
  }
  uint32_t node = 0;
  for (auto c = looked_for.rbegin(); c != looked_for.rend(); ++c) {
    const auto byte = static_cast<unsigned char>(*c);
    const auto [it, fresh] =
        edges_.try_emplace(uint64_t{node} << 8 | byte, static_cast<uint32_t>(nodes_.size()));
    if (fresh) nodes_.push_back({.parent = node, .depth = nodes_[node].depth + 1, .byte = byte});
    node = it->second;
  }
  if (nodes_[node].token < 0) nodes_[node].token = static_cast<int32_t>(tokens_.size());
  last_[static_cast<unsigned char>(looked_for.back())] = true;
  tokens_.push_back(token);
  lengths_.push_back(looked_for.size());
}

// Visits nodes from the shortest strings to the longest, since a node needs its fallback to be
// complete.
void AddedTokenFinder::build() {
  std::vector<uint32_t> order(nodes_.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](uint32_t node) { return nodes_[node].depth; });
  for (const uint32_t i : order) {
    Node& node = nodes_[i];
    if (node.depth > 1) node.fallback = step(nodes_[node.parent].fallback, node.byte);
    if (node.token < 0) node.token = nodes_[node.fallback].token;
  }
}

uint32_t AddedTokenFinder::step(uint32_t node, unsigned char byte) const {
  while (true) {
    const auto it = edges_.find(uint64_t{node} << 8 | byte);
    if (it != edges_.end()) return it->second;
    if (node == 0) return 0;
    node = nodes_[node].fallback;
  }
}

std::vector<AddedTokenFinder::Found> AddedTokenFinder::find(std::string_view text) const {
  std::vector<Found> found;
  uint32_t node = 0;
  for (size_t at = text.size(); at-- > 0;) {
    const auto byte = static_cast<unsigned char>(text[at]);
    if (node == 0 && !last_[byte]) continue;
    node = step(node, byte);
    if (nodes_[node].token >= 0) found.push_back({at, nodes_[node].token});
  }
  return found;
}

bool AddedTokenFinder::stands_alone(std::string_view text, size_t begin, size_t end) const {
  const auto is_word = [&](std::string_view character) {
    Match match;
    TextBudget budget(character.size());
    return Pattern::Finder(*word_, character, budget).next(match);
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
    const auto first =
        std::upper_bound(plain.begin(), plain.end(), begin,
                         [](size_t at, const TextRange& range) { return at < range.end; });
    return first != plain.end() && first->begin < end;
  };
  const auto put = [&](size_t begin, size_t end, int32_t id) {
    if (begin == end) return;
    out.push_back({text.substr(begin, end - begin), id, segment.first && begin == 0,
                   id < 0 && touches(begin, end)});
  };
  const std::vector<Found> found = find(text);
  WhiteSpace spaces(text);
  size_t at = 0;
  for (auto next = found.rbegin(); next != found.rend(); ++next) {
    if (next->at < at) continue;
    const AddedToken* token = &tokens_[static_cast<size_t>(next->token)];
    const size_t length = lengths_[static_cast<size_t>(next->token)];
    size_t begin = next->at, end = begin + length;
    at = end;
    if (token->reserved && touches(at - length, at)) continue;
    if (token->single_word && !stands_alone(text, begin, end)) continue;
    while (token->lstrip && begin > done) {
      const size_t last = utf8_last(text.substr(0, begin));
      if (!is_white_space(utf8_at(text, begin - last).code)) break;
      begin -= last;
    }
    if (token->rstrip) end = spaces.end_of_run(end);
    // A token within white space that its predecessor absorbed is still found, as in the
    // `tokenizers` library. The text after it is not absorbed.
    if (done < begin) put(done, begin, -1);
    put(begin, end, token->id);
    done = end;
  }
  put(done, text.size(), -1);
}

}  // namespace stet
