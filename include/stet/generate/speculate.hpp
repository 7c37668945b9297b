// Speculative decoding: chooses the number of drafted tokens in each pass, by the measured costs of
// passes and the drafts that were right. Clocks decide the speed of a reply, never its bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "stet/api.h"
#include "stet/base/error.hpp"
#include "stet/generate/drafter.hpp"

namespace stet {

// Estimates the time of a pass by its number of rows, from measured passes of replies only. Not for
// use by several threads.
class PassCosts {
 public:
  static constexpr size_t kRows = 64;  // passes of more rows are not counted

  STET_API void add(size_t rows, double seconds);
  // Returns an estimate in seconds; before the first measurement, relative to one row.
  STET_API double of(size_t rows) const;
  // Returns true if passes of this many rows should be measured again.
  bool is_stale(size_t rows) const {
    return rows <= kRows && (at_[rows].seconds == 0 || now_ - at_[rows].when > kFresh);
  }

 private:
  static constexpr double kSlope = 0.08;  // assumed cost of a further row, relative to one row
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
  bool all = false;             // draft `most` tokens whatever they cost
  bool trial = false;           // draft a few tokens, even if it seems not to pay
  size_t lacking = 0;           // see Drafter::Offer
  double catch_up_seconds = 0;  // see Drafter::Offer
  int64_t left = 0;             // tokens that the reply may still have
  uint64_t waited = 0;          // passes since the drafter last caught up
  size_t catching_up = 0;       // chosen: lacking tokens to process before this pass
};

// Chooses the length of each reply's draft for a pass that has `rows` other rows, to maximize the
// expected tokens per second. The pass takes at most `slowest` times as long as without drafts,
// including the work of the drafters. In each pass, one drafter at most catches up, and one trial
// takes place.
STET_API void choose_drafts(std::span<DraftChoice> replies, size_t rows, const PassCosts& costs,
                            double slowest = std::numeric_limits<double>::infinity());

// Drafts the tokens of one reply after another. May be used for several sessions in turn; the
// measured acceptance of drafts is kept.
class Speculator {
 public:
  static constexpr size_t kMost = 15;  // tokens of a draft

  // Without `costs`, measures its own. `always` drafts as much as is offered, whatever it costs.
  // Throws an argument Error if `drafter` is null.
  explicit Speculator(std::shared_ptr<Drafter> drafter, std::shared_ptr<PassCosts> costs = nullptr,
                      bool always = false)
      : drafter_(std::move(drafter)),
        costs_(costs != nullptr ? std::move(costs) : std::make_shared<PassCosts>()),
        always_(always) {
    if (drafter_ == nullptr) throw Error(ErrorKind::argument, "", "drafter", "a drafter", "null");
  }

  // Asks the drafter for up to `limit` tokens to follow the session's tokens and `next`. If the
  // drafter fails, it offers nothing, also in the next calls.
  STET_API DraftChoice consider(const Session& session, int32_t next, size_t limit);
  // Lets the drafter process up to `count` of the tokens that it lacks.
  STET_API void catch_up(const Session& session, int32_t next, size_t count);
  // Returns the first `count` tokens of the draft, valid until the next call; none if the drafter
  // fails.
  STET_API std::span<const int32_t> take(const Session& session, int32_t next, size_t count);
  // Reports a token that was drawn.
  STET_API void drawn(int32_t id);
  PassCosts& costs() { return *costs_; }
  Drafter& drafter() { return *drafter_; }

 private:
  // The number of drafted tokens and of those that were right. Recent ones count more.
  struct Record {
    double right = 0.5, all = 1;
  };
  static constexpr double kMemory = 0.96;
  // Calls of consider() between trials of a drafter that is slow or has failed.
  static constexpr uint64_t kTry = 32;

  template <class Call>
  bool ask(const Call& call);

  std::shared_ptr<Drafter> drafter_;
  std::shared_ptr<PassCosts> costs_;
  bool always_;
  std::array<Record, Drafter::kConfidences> records_ = {};
  std::vector<int32_t> expected_;  // the draft that drawn tokens are compared with
  size_t at_ = 0;                  // tokens of it that were right
  size_t confidence_ = 0;
  uint64_t untried_ = kTry;  // calls of consider() since the last draft; the first is a trial
  uint64_t waited_ = 0;      // calls of consider() since the drafter last caught up
  uint64_t resting_ = 0;     // calls of consider() that do not ask the drafter, which has failed
};

}  // namespace stet
