// Speculative decoding: chooses the number of drafted tokens in each pass, by the measured costs of
// passes and the drafts that were right. Clocks decide the speed of a reply, never its bits.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "stet/generate/drafter.hpp"

namespace stet {

// Estimates the time of a pass from its number of rows. Learns from passes without prompts. One
// thread may use it at a time.
class PassCosts {
 public:
  static constexpr size_t kRows = 64;  // passes of more rows are not counted

  void add(size_t rows, double seconds);
  // Returns an estimate in seconds; before the first measurement, relative to one row.
  double of(size_t rows) const;
  // Returns true if passes of this many rows should be measured again.
  bool is_stale(size_t rows) const {
    return rows <= kRows && (at_[rows].seconds == 0 || now_ - at_[rows].when > kFresh);
  }

 private:
  static constexpr double kSlope = 0.08;  // assumed cost of a further row, in passes of one
  static constexpr uint64_t kFresh = 64, kForgotten = 512;  // in passes
  struct Cost {
    double seconds = 0;  // 0: unknown
    uint64_t when = 0;
  };
  bool known(size_t rows) const {
    return at_[rows].seconds > 0 && now_ - at_[rows].when <= kForgotten;
  }

  std::array<Cost, kRows + 1> at_ = {};
  uint64_t now_ = 0;
};

// A reply that can have drafted rows in the next pass.
struct DraftChoice {
  double acceptance = 0;  // probability that a drafted token is right if those before it are
  double seconds = 0;     // cost of drafting a token
  size_t most = 0;        // tokens that can be drafted
  size_t chosen = 0;
  bool all = false;  // draft `most` tokens whatever they cost
};

// Chooses the lengths of the drafts of a pass that has `rows` rows without them, so that the most
// tokens are expected per second. The pass takes at most `slowest` times as long as without drafts.
void choose_drafts(std::span<DraftChoice> replies, size_t rows, const PassCosts& costs,
                   double slowest = std::numeric_limits<double>::infinity());

// Drafts the tokens of one reply after another. May be used for other sessions in between; what it
// has learned of drafts stays.
class Speculator {
 public:
  static constexpr size_t kMost = 15;  // tokens of a draft

  // Without `costs`, measures its own. `always` drafts as much as is offered, whatever it costs.
  explicit Speculator(std::shared_ptr<Drafter> drafter, std::shared_ptr<PassCosts> costs = nullptr,
                      bool always = false)
      : drafter_(std::move(drafter)),
        costs_(costs != nullptr ? std::move(costs) : std::make_shared<PassCosts>()),
        always_(always) {}

  // Asks for a draft of up to `limit` tokens after the session's and `next`.
  DraftChoice consider(const Session& session, int32_t next, size_t limit);
  // Returns the first `count` tokens of the draft, valid until the next call.
  std::span<const int32_t> take(const Session& session, int32_t next, size_t count);
  // Reports a token that was drawn.
  void drawn(int32_t id);
  PassCosts& costs() { return *costs_; }
  Drafter& drafter() { return *drafter_; }

 private:
  // The number of drafted tokens and of those that were right. Recent ones count more.
  struct Record {
    double right = 0.5, all = 1;
  };
  static constexpr double kMemory = 0.96;
  static constexpr uint64_t kTry = 32;  // considerations between trials of a drafter that costs

  std::shared_ptr<Drafter> drafter_;
  std::shared_ptr<PassCosts> costs_;
  bool always_;
  std::array<Record, Drafter::kConfidences> records_ = {};
  std::vector<int32_t> expected_;  // the draft that drawn tokens are compared with
  size_t at_ = 0;                  // tokens of the draft that were right
  size_t confidence_ = 0;
  uint64_t untried_ = 0;
};

inline void PassCosts::add(size_t rows, double seconds) {
  if (rows == 0 || rows > kRows || seconds <= 0) return;
  ++now_;
  Cost& cost = at_[rows];
  const bool forgotten = !known(rows);
  cost.when = now_;
  if (forgotten)
    cost.seconds = seconds;
  else if (seconds < cost.seconds)  // chance may delay a pass, but does not speed it up
    cost.seconds += 0.5 * (seconds - cost.seconds);
  else
    cost.seconds += 0.1 * (std::min(seconds, 2 * cost.seconds) - cost.seconds);
}

// Interpolates between the nearest measured numbers of rows.
inline double PassCosts::of(size_t rows) const {
  size_t below = std::min(rows, kRows), above = below;
  while (below > 0 && !known(below)) --below;
  while (above <= kRows && !known(above)) ++above;
  const auto at = static_cast<double>(rows);
  if (below == 0 && above > kRows) return 1 + kSlope * (at - 1);
  if (below == 0)
    return at_[above].seconds * (1 + kSlope * (at - 1)) /
           (1 + kSlope * (static_cast<double>(above) - 1));
  const double low = at_[below].seconds;
  if (above > kRows) {
    const double measured =
        known(1) && below > 1 ? (low - at_[1].seconds) / static_cast<double>(below - 1) : 0;
    const double assumed = kSlope * (known(1) ? at_[1].seconds : low);
    return low + std::max(measured, below == 1 ? assumed : 0.25 * assumed) *
                     (at - static_cast<double>(below));
  }
  if (above == below) return low;
  const double part = (at - static_cast<double>(below)) / static_cast<double>(above - below);
  return low + part * (at_[above].seconds - low);
}

inline void choose_drafts(std::span<DraftChoice> replies, size_t rows, const PassCosts& costs,
                          double slowest) {
  constexpr double kLeastGain = 1.03, kLeastSlope = 0.02;
  const auto next_gain = [](const DraftChoice& r) {
    return r.chosen < r.most && !r.all ? std::pow(r.acceptance, static_cast<double>(r.chosen + 1))
                                       : 0.0;
  };
  for (DraftChoice& r : replies) r.chosen = r.all ? r.most : 0;
  if (costs.is_stale(rows)) return;
  const double alone = costs.of(rows);
  std::vector<size_t> added;  // in order of their gain
  double tokens = static_cast<double>(rows), drafting = 0, best = kLeastGain * tokens / alone;
  size_t kept = 0;
  while (rows + added.size() < PassCosts::kRows) {
    const auto next = std::ranges::max_element(replies, {}, next_gain);
    if (next == replies.end() || next_gain(*next) <= 0) break;
    tokens += next_gain(*next);
    drafting += next->seconds;
    ++next->chosen;
    added.push_back(static_cast<size_t>(next - replies.begin()));
    // more rows are never cheaper, though a disturbed measurement may say so
    const double least = alone * (1 + kLeastSlope * static_cast<double>(added.size()));
    const double seconds = std::max(costs.of(rows + added.size()), least) + drafting;
    if (seconds > slowest * alone) break;
    if (tokens / seconds > best) best = tokens / seconds, kept = added.size();
  }
  for (size_t i = kept; i < added.size(); ++i) --replies[added[i]].chosen;
}

inline DraftChoice Speculator::consider(const Session& session, int32_t next, size_t limit) {
  expected_.clear();
  at_ = 0;
  const Drafter::Offer offer = drafter_->offer(session, next, std::min(limit, kMost));
  confidence_ = offer.confidence;
  expected_.assign(offer.known.begin(), offer.known.end());
  const Record& record = records_[confidence_];
  DraftChoice choice{record.right / record.all, offer.seconds, offer.most, 0, always_};
  // a drafter that costs is tried from time to time, since drafts not made cannot be compared
  if (offer.most > 0 && offer.known.empty() && ++untried_ > kTry) {
    choice.most = std::min<size_t>(2, offer.most);
    choice.all = true;
  }
  return choice;
}

inline std::span<const int32_t> Speculator::take(const Session& session, int32_t next,
                                                 size_t count) {
  if (count == 0) return {};
  const std::span<const int32_t> draft = drafter_->draft(session, next, count);
  if (expected_.empty()) expected_.assign(draft.begin(), draft.end());
  untried_ = 0;
  return draft;
}

inline void Speculator::drawn(int32_t id) {
  if (at_ >= expected_.size()) return;
  const bool right = expected_[at_] == id;
  Record& record = records_[confidence_];
  record.right = kMemory * record.right + (right ? 1 : 0);
  record.all = kMemory * record.all + 1;
  if (right)
    ++at_;
  else
    expected_.clear();
}

}  // namespace stet
