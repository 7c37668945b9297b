// A drafter that is a smaller model of the same vocabulary.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stet/generate/drafter.hpp"
#include "stet/sampling/sampler.hpp"

namespace stet {

// Keeps the sessions of a draft model that caught up last, and measured times, for all its drafters.
// These fork the sessions, so that tokens which several texts begin with are processed once. Only
// one of the drafters may be used at a time.
class DraftSessions {
 public:
  static constexpr size_t kKept = 4;

  DraftSessions(std::shared_ptr<const Model> model, const SessionOptions& options)
      : model_(std::move(model)), options_(options) {}

  const Model& model() const { return *model_; }
  std::shared_ptr<Session> make() const { return std::make_shared<Session>(model_, options_); }
  // Returns a fork of the session that shares the most tokens with a text, or null if none shares
  // more than `known`. Tokens that a rewind processes again do not count.
  std::shared_ptr<Session> fork_for(std::span<const int32_t> tokens, size_t known) const {
    std::shared_ptr<Session> best;
    for (const std::shared_ptr<Session>& each : kept_) {
      const size_t common = common_prefix(*each, tokens);
      const auto cost = static_cast<size_t>(each->rewind_cost(static_cast<int64_t>(common)));
      if (common > known + cost) best = each, known = common - cost;
    }
    return best == nullptr ? nullptr : std::make_shared<Session>(best->fork());
  }
  // Keeps a session that has caught up by this many tokens.
  void caught_up(const std::shared_ptr<Session>& session, std::chrono::steady_clock::duration took,
                 size_t count) {
    std::erase(kept_, session);
    if (kept_.size() == kKept) kept_.pop_back();
    kept_.insert(kept_.begin(), session);
    catch_up_seconds = average_seconds(catch_up_seconds, took, count);
    refusals_ = 0;
  }
  void drafted(std::chrono::steady_clock::duration took, size_t count) {
    draft_seconds = average_seconds(draft_seconds, took, count);
  }
  // Discards the times after many refused offers to catch up, because accidents make times long.
  void count_refusal() {
    if (++refusals_ <= kForgotten) return;
    draft_seconds = catch_up_seconds = 0;
    refusals_ = 0;
  }
  static size_t common_prefix(const Session& session, std::span<const int32_t> tokens) {
    return static_cast<size_t>(std::ranges::mismatch(tokens, session.tokens()).in1 -
                               tokens.begin());
  }

  double draft_seconds = 0, catch_up_seconds = 0;  // per token; 0: unknown

 private:
  static constexpr size_t kForgotten = 512;

  std::shared_ptr<const Model> model_;
  SessionOptions options_;
  std::vector<std::shared_ptr<Session>> kept_;  // the last used first
  size_t refusals_ = 0;                         // offers to catch up since one was accepted
};

// Draws the next tokens from another model, with the request's own settings, seed and positions.
// At any temperature, drafts are therefore right as often as the two models agree. The drafter has a
// session of its own, which follows the tokens of the other. After a failure, for instance by logits
// that are not finite, the next call continues from the tokens that both have.
class ModelDrafter : public Drafter {
 public:
  // Throws what the constructor of Session throws.
  ModelDrafter(std::shared_ptr<const Model> model, const SessionOptions& options)
      : ModelDrafter(std::make_shared<DraftSessions>(std::move(model), options)) {}
  explicit ModelDrafter(std::shared_ptr<DraftSessions> shared)
      : shared_(std::move(shared)),
        session_(shared_->make()),
        sampler_(static_cast<int>(vocab_size(*session_))) {}

  // Throws an argument Error unless the two models have the same number of tokens.
  static void check(const Model& draft, const Model& model) {
    const int64_t found = draft.config().vocab_size, expected = model.config().vocab_size;
    if (found == expected) return;
    throw Error(ErrorKind::argument, draft.directory(), "vocab_size",
                std::to_string(expected) + ", as of the model whose tokens are drafted",
                std::to_string(found));
  }

  Offer offer(const Session& session, int32_t next, size_t most) override {
    draft_.clear();
    const size_t size = static_cast<size_t>(session.size()) + 1;
    const auto room = static_cast<size_t>(session_->capacity());
    if (size >= room) return {};
    const std::span<const int32_t> tokens = session.tokens();
    const size_t lacking = agree(tokens, next);
    const auto unknown = [&](int32_t id) { return id >= vocab_size(*session_); };
    if (unknown(next) || std::ranges::any_of(tokens.last(lacking > 0 ? lacking - 1 : 0), unknown))
      return {};
    if (lacking <= kNear) return {std::min(most, room - size + 1), {}, 0, shared_->draft_seconds};
    shared_->count_refusal();
    return {0, {}, 0, shared_->draft_seconds, lacking - 1, shared_->catch_up_seconds};
  }

  void catch_up(const Session& session, int32_t next, size_t count) override {
    const std::span<const int32_t> tokens = session.tokens();
    const size_t lacking = agree(tokens, next) - 1;
    const std::span<const int32_t> some = tokens.last(lacking).first(std::min(count, lacking));
    const auto start = std::chrono::steady_clock::now();
    session_->append(some);
    shared_->caught_up(session_, std::chrono::steady_clock::now() - start, some.size());
  }

  std::span<const int32_t> draft(const Session& session, int32_t next, size_t count) override {
    const auto start = std::chrono::steady_clock::now();
    draft_.clear();
    const std::span<const int32_t> target = session.tokens();
    if (const size_t lacking = agree(target, next); lacking > 0) {
      missing_.assign(target.end() - static_cast<std::ptrdiff_t>(lacking - 1), target.end());
      missing_.push_back(next);
      session_->append(missing_);
    }
    const GenerationState& state = session.generation();
    const SamplingSettings sampling = settings(state);
    const auto position = static_cast<uint64_t>(session.transcript_size()) + 1;
    while (draft_.size() < count) {
      if (!draft_.empty()) session_->append({&draft_.back(), 1});
      const std::span<const int32_t> tokens = session_->tokens();
      const int32_t id = sampler_.sample(sampling, session_->logits(), tokens,
                                         position + draft_.size(), state.reply_of(tokens));
      if (id >= vocab_size(session)) break;
      draft_.push_back(id);
    }
    shared_->drafted(std::chrono::steady_clock::now() - start, count);
    return draft_;
  }

 private:
  // Tokens that draft() may process before it drafts. If more are missing, catch_up() is needed.
  static constexpr size_t kNear = 16;

  static int64_t vocab_size(const Session& session) { return session.model().config().vocab_size; }
  // Returns the reply's settings without biases of tokens that the draft model does not have.
  SamplingSettings settings(const GenerationState& state) const {
    SamplingSettings s = state.sampling;
    while (!s.logit_bias.empty() && s.logit_bias.back().id >= vocab_size(*session_))
      s.logit_bias.pop_back();
    return s;
  }
  // Rewinds the draft model's session to its longest common prefix with `tokens` followed by
  // `next`, or forks one that has more of them. Returns the number of those tokens that the session
  // then lacks.
  size_t agree(std::span<const int32_t> tokens, int32_t next) {
    size_t common = DraftSessions::common_prefix(*session_, tokens);
    if (tokens.size() > common + kNear) {
      if (auto other = shared_->fork_for(tokens, common + kNear)) {
        session_ = std::move(other);
        common = DraftSessions::common_prefix(*session_, tokens);
      }
    }
    const std::vector<int32_t>& own = session_->tokens();
    if (common == tokens.size() && own.size() > common && own[common] == next) ++common;
    session_->rewind(static_cast<int64_t>(common));
    return tokens.size() + 1 - common;
  }

  std::shared_ptr<DraftSessions> shared_;
  std::shared_ptr<Session> session_;
  Sampler sampler_;
  std::vector<int32_t> missing_, draft_;
};

}  // namespace stet
