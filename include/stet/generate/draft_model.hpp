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

// Draws the next tokens from another model, with the request's own settings, seed and positions.
// At any temperature, drafts are therefore right as often as the two models agree. The drafter has a
// session of its own, which follows the tokens of the other. After a failure, for instance by logits
// that are not finite, the next call continues from the tokens that both have.
class ModelDrafter : public Drafter {
 public:
  // Throws what the constructor of Session throws.
  ModelDrafter(std::shared_ptr<const Model> model, const SessionOptions& options)
      : session_(std::move(model), options),
        sampler_(static_cast<int>(session_.model().config().vocab_size)) {}

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
    const auto room = static_cast<size_t>(session_.capacity());
    if (session.model().config().vocab_size != session_.model().config().vocab_size || size >= room)
      return {};
    const std::span<const int32_t> tokens = session.tokens();
    const size_t lacking = agree(tokens, next);
    if (lacking > kCatchUp) {
      session_.append(tokens.subspan(size - lacking, kCatchUp));
      return {};
    }
    return {std::min(most, room - size + 1), {}, 0, seconds_};
  }

  std::span<const int32_t> draft(const Session& session, int32_t next, size_t count) override {
    const auto start = std::chrono::steady_clock::now();
    draft_.clear();
    const std::span<const int32_t> target = session.tokens();
    if (const size_t lacking = agree(target, next); lacking > 0) {
      missing_.assign(target.end() - static_cast<std::ptrdiff_t>(lacking - 1), target.end());
      missing_.push_back(next);
      session_.append(missing_);
    }
    const GenerationState& state = session.generation();
    const auto position = static_cast<uint64_t>(session.transcript_size()) + 1;
    while (draft_.size() < count) {
      if (!draft_.empty()) session_.append({&draft_.back(), 1});
      const std::span<const int32_t> tokens = session_.tokens();
      draft_.push_back(sampler_.sample(state.sampling, session_.logits(), tokens,
                                       position + draft_.size(), state.reply_of(tokens)));
    }
    seconds_ = average_seconds(seconds_, std::chrono::steady_clock::now() - start, count);
    return draft_;
  }

 private:
  // Tokens that may be missing when drafting begins. If more are missing, a call processes this many
  // of them and drafts nothing, so that no reply waits for long.
  static constexpr size_t kCatchUp = 64;

  // Rewinds the draft model's session to its longest common prefix with `tokens` followed by
  // `next`. Returns the number of those tokens that the session then lacks.
  size_t agree(std::span<const int32_t> tokens, int32_t next) {
    const std::vector<int32_t>& own = session_.tokens();
    auto common = static_cast<size_t>(std::ranges::mismatch(tokens, own).in1 - tokens.begin());
    if (common == tokens.size() && own.size() > common && own[common] == next) ++common;
    session_.rewind(static_cast<int64_t>(common));
    return tokens.size() + 1 - common;
  }

  Session session_;
  Sampler sampler_;
  std::vector<int32_t> missing_, draft_;
  double seconds_ = 0;
};

}  // namespace stet
