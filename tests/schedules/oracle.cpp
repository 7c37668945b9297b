#include "schedules/oracle.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace stet::test {

int64_t Timeline::size() const { return size_; }

int64_t Timeline::floor() const {
  return stages_.size() == 1 ? 0 : size_ - static_cast<int64_t>(stages_.back().tokens.size()) + 1;
}

void Timeline::append(std::span<const int32_t> ids) {
  stages_.back().tokens.insert(stages_.back().tokens.end(), ids.begin(), ids.end());
  size_ += static_cast<int64_t>(ids.size());
}

void Timeline::rewind(int64_t size) {
  std::vector<int32_t>& tokens = stages_.back().tokens;
  tokens.resize(tokens.size() - static_cast<size_t>(size_ - size));
  size_ = size;
}

void Timeline::prune(int64_t begin, int64_t end, bool shift) {
  if (begin == end) return;
  Stage& last = stages_.back();
  last.begin = begin, last.end = end, last.shift = shift;
  stages_.push_back({});
  if (shift) size_ -= end - begin;
}

void Timeline::replay(Session& session) const {
  for (const Stage& s : stages_) {
    session.append(s.tokens);
    if (s.begin != s.end) session.prune_range(s.begin, s.end, s.shift);
  }
}

std::string Timeline::text() const {
  std::string text;
  for (const Stage& s : stages_) {
    if (!s.tokens.empty()) text += fmt::format("  plain.append(std::vector<int32_t>{{{}}});\n", fmt::join(s.tokens, ", "));
    if (s.begin != s.end) text += fmt::format("  plain.prune_range({}, {}, {});\n", s.begin, s.end, s.shift);
  }
  return text;
}

std::string Timeline::name() const {
  std::string bytes;
  const auto add = [&](const auto& number) { bytes.append(reinterpret_cast<const char*>(&number), sizeof number); };
  for (const Stage& s : stages_) {
    add(s.tokens.size()), add(s.begin), add(s.end), add(s.shift);
    bytes.append(reinterpret_cast<const char*>(s.tokens.data()), s.tokens.size() * sizeof(int32_t));
  }
  return bytes;
}

Truth truth_of(Session& session) {
  const Digest state = digests_of(session).state;
  return {session.tokens(), digest_of(std::as_bytes(session.logits())), digest_of(kv_bytes(session.kv())), state};
}

const Truth& Oracle::truth(const Timeline& timeline) {
  const auto [it, is_new] = known_.try_emplace(timeline.name());
  if (is_new) {
    Session plain(model_, plain_);
    timeline.replay(plain);
    it->second = truth_of(plain);
  }
  return it->second;
}

}  // namespace stet::test
