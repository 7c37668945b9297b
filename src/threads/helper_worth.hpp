// Whether the threads of a parallel region are worth their price.
#pragma once

#include <algorithm>
#include <chrono>

#include "stet/threads/team.hpp"

namespace stet {

// The judgement of one calling thread. A parallel region ends when all its threads have come and
// gone: beside other programs one that the system has put aside holds up a short run for many times
// its length. So what helpers saved and what waiting for them cost is balanced, and while they are
// in debt runs do without them, but for one now and then.
class HelperWorth {
 public:
  using Clock = std::chrono::steady_clock;
  // A run as its calling thread saw it. From `done` on, when all operations were, it waited.
  struct Run {
    int helpers;
    Clock::time_point start, done = {};
    Tally tally = {};  // of the calling thread
  };

  // Asked before every run. A clock is read only while they are in debt.
  template <class Now>
  bool are_worth_it(Now now) {
    if (balance_ >= Seconds(0)) return true;
    const Clock::time_point time = now();
    balance_ += kTried * std::min(Seconds(time - seen_), -kLeast / kTried);
    seen_ = time;
    return balance_ >= Seconds(0);
  }
  // The run is over, at `now`.
  void note(const Run& run, Clock::time_point now) {
    const double mine = std::max(1.0, static_cast<double>(run.tally.done)),
                 pieces = std::max(mine, static_cast<double>(run.tally.pieces));
    const Seconds busy = run.done - run.start, waited = now - run.done,
                  saved = busy * std::min<double>(run.helpers, pieces / mine - 1);
    usual_ += (busy - usual_) / (usual_ == Seconds(0) ? 1 : 8);
    balance_ = std::clamp(balance_ + saved - waited, kLeast, std::max(kMost, 2 * usual_));
    seen_ = now;
  }

 private:
  using Seconds = std::chrono::duration<double>;
  static constexpr double kTried = 0.03;                 // of the time goes into trying them again
  static constexpr Seconds kLeast{-0.01}, kMost{0.005};  // kMost: or two runs of the usual length

  Seconds balance_{0};      // of what they saved over what they cost, within limits
  Seconds usual_{0};        // length of the latest runs
  Clock::time_point seen_;  // when that was last so
};

}  // namespace stet
