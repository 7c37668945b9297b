// Drafters guess the tokens that follow. A guess decides how fast a reply comes, never what it is.
#pragma once

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "stet/api.h"
#include "stet/session/session.hpp"

namespace stet {

// Returns `average`, the mean seconds per step, updated by `count` more steps that took `took` in
// all. An average of 0 means that no step was measured.
STET_API double average_seconds(double average, std::chrono::steady_clock::duration took,
                                size_t count);

// Guesses the tokens that follow those of a session. A drafter must not change the session. If it
// throws anything but Interrupted (interrupt.hpp), the pass runs without a draft. It is then asked
// again some passes later, perhaps for another session.
class Drafter {
 public:
  // The guess for one pass.
  struct Offer {
    size_t most = 0;                      // tokens that draft() can return
    std::span<const int32_t> known = {};  // the tokens themselves, if drafting costs nothing
    size_t confidence = 0;                // below kConfidences; each has a rate of its own
    double seconds = 0;                   // time of draft() per token; 0: unknown
    size_t lacking = 0;           // tokens to process by catch_up() before anything can be drafted
    double catch_up_seconds = 0;  // time of catch_up() per token; 0: unknown
  };
  static constexpr size_t kConfidences = 4;

  virtual ~Drafter() = default;
  // Offers up to `most` tokens to follow the session's tokens and `next`. The offer's tokens are
  // valid until the next call.
  virtual Offer offer(const Session& session, int32_t next, size_t most) = 0;
  // Returns up to `count` tokens of the last offer. They are valid until the next call.
  virtual std::span<const int32_t> draft(const Session& session, int32_t next, size_t count) = 0;
  // Processes up to `count` of the tokens that the last offer lacked.
  virtual void catch_up(const Session&, int32_t, size_t) {}
};

// Finds earlier occurrences of the end of a text. Chains link the positions at which the same
// kKey tokens end, latest first. Tokens are added and removed at the end in constant time.
class SuffixIndex {
 public:
  struct Match {
    size_t length = 0;    // tokens that agree, up to kLongest; 0: none
    size_t position = 0;  // position of the token after them
  };
  static constexpr size_t kKey = 3, kLongest = 32, kCandidates = 32;

  const std::vector<int32_t>& tokens() const { return tokens_; }
  // Makes the text `tokens` followed by `next`. Costs little beyond the tokens that changed.
  void set(std::span<const int32_t> tokens, int32_t next) {
    const size_t common =
        static_cast<size_t>(std::ranges::mismatch(tokens, tokens_).in1 - tokens.begin());
    truncate(common);
    for (const int32_t id : tokens.subspan(common)) push(id);
    if (tokens_.size() == tokens.size() + 1 && tokens_.back() == next) return;
    truncate(tokens.size());
    push(next);
  }
  // Returns the longest match of the end of `text`, the latest among equals, that has a token
  // after it.
  Match find(std::span<const int32_t> text) const;

 private:
  size_t key(std::span<const int32_t> text) const {
    uint64_t h = 0;
    for (const int32_t id : text.last(kKey))
      h = (h ^ static_cast<uint32_t>(id)) * 0x9E3779B97F4A7C15u, h ^= h >> 29;
    return static_cast<size_t>(h) & (heads_.size() - 1);
  }
  void truncate(size_t size) {
    while (tokens_.size() > size) {
      if (tokens_.size() >= kKey) heads_[key(tokens_)] = before_.back();
      tokens_.pop_back();
      before_.pop_back();
    }
  }
  void push(int32_t id) {
    if (2 * tokens_.size() >= heads_.size()) grow();
    tokens_.push_back(id);
    before_.push_back(0);
    if (tokens_.size() >= kKey) link(tokens_.size());
  }
  // Links the position after the first `end` tokens.
  void link(size_t end) {
    uint32_t& head = heads_[key(std::span(tokens_).first(end))];
    before_[end - 1] = head;
    head = static_cast<uint32_t>(end);
  }
  void grow() {
    heads_.assign(std::bit_ceil(std::max<size_t>(1024, 4 * tokens_.size())), 0);
    for (size_t end = kKey; end <= tokens_.size(); ++end) link(end);
  }

  std::vector<int32_t> tokens_;
  std::vector<uint32_t> heads_;   // for each key: one past the latest position; 0: none
  std::vector<uint32_t> before_;  // [tokens]: the position linked before this one
};

inline SuffixIndex::Match SuffixIndex::find(std::span<const int32_t> text) const {
  Match best;
  if (text.size() < kKey || tokens_.size() <= kKey) return best;
  uint32_t end = heads_[key(text)];
  for (size_t i = 0; i < kCandidates && end != 0; ++i, end = before_[end - 1]) {
    if (end == tokens_.size()) continue;  // nothing follows
    const size_t most = std::min({kLongest, text.size(), static_cast<size_t>(end)});
    size_t length = 0;
    while (length < most && text[text.size() - 1 - length] == tokens_[end - 1 - length]) ++length;
    if (length < kKey || length <= best.length) continue;
    best = {length, end};
    if (length == kLongest) break;
  }
  return best;
}

// Drafts the continuation of the longest earlier occurrence of the last tokens, in the session's
// own tokens and in further texts.
class SuffixDrafter : public Drafter {
 public:
  static constexpr size_t kTexts = 16;

  // Adds a text to search, such as another reply to the same prompt. Keeps the last kTexts.
  void add(std::span<const int32_t> tokens) {
    if (tokens.size() <= SuffixIndex::kKey) return;
    if (texts_.size() == kTexts) texts_.erase(texts_.begin());
    texts_.emplace_back().set(tokens.first(tokens.size() - 1), tokens.back());
  }

  Offer offer(const Session& session, int32_t next, size_t most) override {
    own_.set(session.tokens(), next);
    const SuffixIndex* from = &own_;
    SuffixIndex::Match best = own_.find(own_.tokens());
    for (const SuffixIndex& text : texts_) {
      const SuffixIndex::Match found = text.find(own_.tokens());
      if (found.length > best.length) best = found, from = &text;
    }
    draft_.clear();
    if (best.length == 0) return {};
    const std::vector<int32_t>& text = from->tokens();
    // past the end of the session's tokens the draft repeats itself
    for (size_t at = best.position; draft_.size() < most; ++at) {
      if (at < text.size())
        draft_.push_back(text[at]);
      else if (from == &own_)
        draft_.push_back(draft_[at - text.size()]);
      else
        break;
    }
    const size_t length = best.length;
    return {draft_.size(), draft_, length < 5 ? 0u : length < 9 ? 1u : length < 17 ? 2u : 3u, 0};
  }
  std::span<const int32_t> draft(const Session&, int32_t, size_t count) override {
    return std::span(draft_).first(std::min(count, draft_.size()));
  }

 private:
  SuffixIndex own_;
  std::vector<SuffixIndex> texts_;
  std::vector<int32_t> draft_;
};

}  // namespace stet
