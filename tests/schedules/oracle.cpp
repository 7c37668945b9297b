#include "schedules/oracle.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace stet::test {

Intervention change_of(const Model& m, uint32_t which) {
  static constexpr Point kPoints[kChanges] = {Point::resid_pre, Point::v, Point::mlp_post,
                                              Point::z};
  static constexpr Intervention::Op kOps[kChanges] = {
      Intervention::Op::add, Intervention::Op::scale, Intervention::Op::project_out,
      Intervention::Op::set};
  Intervention w;
  w.point = kPoints[which];
  w.op = kOps[which];
  w.layers = {0};
  w.amount = 0.5f;
  if (w.op == Intervention::Op::scale) return w;
  std::vector<float> values(static_cast<size_t>(point_width(m.config(), w.point, 0)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.125f * static_cast<float>(i % 5) - 0.25f;
  w.values = std::make_shared<const std::vector<float>>(std::move(values));
  return w;
}

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
  std::erase_if(stages_.back().changes, [&](const auto& c) { return c.first > tokens.size(); });
  size_ = size;
}

void Timeline::prune(int64_t begin, int64_t end, bool shift) {
  if (begin == end) return;
  Stage& last = stages_.back();
  last.begin = begin, last.end = end, last.shift = shift;
  stages_.push_back({});
  if (shift) size_ -= end - begin;
}

void Timeline::attach(uint32_t which) {
  stages_.back().changes.emplace_back(stages_.back().tokens.size(), which);
}

void Timeline::replay(const Model& m, Session& session) const {
  for (const Stage& s : stages_) {
    size_t done = 0;
    for (const auto& [at, which] : s.changes) {
      session.append(std::span(s.tokens).subspan(done, at - done));
      session.attach(change_of(m, which));
      done = at;
    }
    session.append(std::span(s.tokens).subspan(done));
    if (s.begin != s.end) session.prune_range(s.begin, s.end, s.shift);
  }
}

std::string Timeline::text() const {
  std::string text;
  for (const Stage& s : stages_) {
    for (const auto& [at, which] : s.changes)
      text += fmt::format("  // after {} of these tokens: plain.attach(change_of(model, {}));\n",
                          at, which);
    if (!s.tokens.empty())
      text +=
          fmt::format("  plain.append(std::vector<int32_t>{{{}}});\n", fmt::join(s.tokens, ", "));
    if (s.begin != s.end)
      text += fmt::format("  plain.prune_range({}, {}, {});\n", s.begin, s.end, s.shift);
  }
  return text;
}

std::string Timeline::name() const {
  std::string bytes;
  const auto add = [&](const auto& number) {
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  for (const Stage& s : stages_) {
    add(s.tokens.size()), add(s.begin), add(s.end), add(s.shift);
    bytes.append(reinterpret_cast<const char*>(s.tokens.data()), s.tokens.size() * sizeof(int32_t));
    add(s.changes.size());
    for (const auto& [at, which] : s.changes) add(at), add(which);
  }
  return bytes;
}

Truth truth_of(Session& session) {
  const StateDigests digests = digests_of(session);
  return {session.tokens(),
          digest_of(std::as_bytes(session.logits())),
          digest_of(kv_bytes(session.kv())),
          digests.state,
          digests.id,
          session.block_identities()};
}

bool Names::blocks_agree(const KvCache& kv, const std::vector<BlockIdentity>& blocks) {
  for (size_t b = 0; b < blocks.size(); ++b) {
    const auto i = static_cast<int64_t>(b);
    const Digest bytes = digest_of({kv.block(i), kv.shape().block_bytes()});
    const uint64_t meaning[] = {bytes.low, bytes.high, kv.visible(i),
                                static_cast<uint64_t>(kv.shape().type)};
    if (!is_of(blocks[b].id, digest_of(std::as_bytes(std::span(meaning))))) return false;
  }
  return true;
}

namespace {

// Of a state and of the logits after two more tokens.
Digest continuation(Session& session, const Truth& truth) {
  const std::vector<int32_t> two = {5, 6};
  Session on = session.fork();
  if (on.size() + 2 <= on.capacity()) on.append(two);
  const Digest logits = digest_of(std::as_bytes(on.logits()));
  const uint64_t all[] = {truth.state.low, truth.state.high, logits.low, logits.high};
  return digest_of(std::as_bytes(std::span(all)));
}

}  // namespace

const Truth& Oracle::truth(const Timeline& timeline) {
  const auto [it, is_new] = known_.try_emplace(timeline.name());
  if (is_new) {
    Session plain(model_, plain_);
    timeline.replay(*model_, plain);
    it->second = truth_of(plain);
    if (!names_.is_of(it->second.id, continuation(plain, it->second)))
      throw std::runtime_error("one id of two states:\n" + timeline.text());
  }
  return it->second;
}

}  // namespace stet::test
